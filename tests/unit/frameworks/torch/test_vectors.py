"""What models may contain: several dtypes, frozen, tied and unused parameters, buffers."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn

from paceline.core.vectors import aligned_zeros, differences
from paceline.data import Batch
from paceline.errors import ConfigError, DataError, ReplicaError, TrainingError
from paceline.frameworks.registry import make_replica
from paceline.frameworks.torch.by_name import find_loss, make_optimizer
from paceline.frameworks.torch.vectors import TorchVectors


class Mixed(nn.Module):
    """float32, float64 and bfloat16 parameters side by side."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4, dtype=torch.float64)
        self.c = nn.Linear(4, 2, dtype=torch.bfloat16)

    def forward(self, x):
        return self.c(self.b(self.a(x).double()).bfloat16()).float()


def rehomed(model):
    vectors = TorchVectors(model)
    size, dtype = vectors.layout.size, vectors.layout.dtype
    vectors.rehome(aligned_zeros(size, dtype), aligned_zeros(size, dtype))
    return vectors


def test_parameters_become_views_and_stay_the_same_objects():
    model = nn.Linear(3, 2)
    weight, before = model.weight, model.weight.detach().clone()
    vectors = rehomed(model)
    assert model.weight is weight
    assert torch.equal(weight, before)
    vectors.parameters()[:] = 7.0
    assert torch.equal(weight, torch.full((2, 3), 7.0))


def test_several_dtypes_share_one_vector_without_loss():
    model = Mixed()
    before = [p.detach().clone() for p in model.parameters()]
    vectors = rehomed(model)
    assert vectors.layout.dtype == np.float64
    assert {entry.dtype for entry in vectors.layout.entries} == {"float32", "float64", "bfloat16"}
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    vector = vectors.parameters()
    vector *= 2.0
    vectors.accept_parameters()
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old * 2)
        assert parameter.dtype == old.dtype


def test_gradients_of_several_dtypes_go_there_and_back():
    model = Mixed()
    vectors = rehomed(model)
    model(torch.ones(3, 4)).square().sum().backward()
    plain = [p.grad.detach().clone() for p in model.parameters()]
    vector, present = vectors.collect_gradients()
    vector *= 0.5
    vectors.accept_gradients(present)
    for parameter, gradient in zip(model.parameters(), plain, strict=True):
        assert parameter.grad.dtype == parameter.dtype
        assert torch.equal(parameter.grad, gradient * 0.5)


def test_float64_models_train_in_float64():
    assert TorchVectors(nn.Linear(2, 2).double()).layout.dtype == np.float64


def test_frozen_parameters_are_constants():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    vectors = rehomed(model)
    assert [entry.name for entry in vectors.layout.entries] == ["1.weight", "1.bias"]
    expected = b"".join(p.detach().numpy().tobytes() for p in model[0].parameters())
    constants = vectors.constants()
    assert constants.tobytes() == expected
    constants[:] = 0
    vectors.accept_constants()
    assert not model[0].weight.any()


def test_a_parameter_unfrozen_later_is_reported():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    vectors = rehomed(model)
    model[0].weight.requires_grad_(True)
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(TrainingError, match=r"'0\.weight' was frozen"):
        vectors.collect_gradients()


def test_tied_weights_appear_once_and_stay_tied():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    vectors = rehomed(model)
    assert len(vectors.layout.entries) == 1
    vectors.parameters()[:] = 2.0
    assert model[0].weight.data_ptr() == model[1].weight.data_ptr()
    assert torch.equal(model[1].weight, torch.full((3, 3), 2.0))


def test_tied_weights_are_saved_once(tmp_path):
    from safetensors.torch import load_model

    def tied():
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        model[1].weight = model[0].weight
        return model

    model, fresh = tied(), tied()
    path = make_replica(model, "mse", {"name": "sgd"}).save(tmp_path / "model")
    load_model(fresh, path)
    assert torch.equal(fresh[1].weight, model[0].weight)


def test_float_buffers_travel_and_integer_ones_are_constants():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model(torch.randn(8, 2))
    vectors = rehomed(model)
    mean, variance = model[1].running_mean.clone(), model[1].running_var.clone()
    buffers = vectors.buffers()
    buffers += 1.0
    vectors.accept_buffers()
    assert torch.equal(model[1].running_mean, mean + 1)
    assert torch.equal(model[1].running_var, variance + 1)
    constants = vectors.constants()
    assert constants.view(np.int64).tolist() == [1]  # num_batches_tracked
    constants.view(np.int64)[:] = 5
    vectors.accept_constants()
    assert int(model[1].num_batches_tracked) == 5


def test_a_parameter_without_gradient_is_left_alone_by_the_optimizer():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x):
            return self.used(x)

    model = TwoHeads()
    vectors = rehomed(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    unused = model.unused.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    _, present = vectors.collect_gradients()
    assert present.tolist() == [1, 1, 0, 0]
    vectors.accept_gradients(present)
    optimizer.step()
    assert torch.equal(model.unused.weight, unused)  # weight decay would have moved it


def test_a_gradient_that_only_another_rank_has_is_applied():
    model = nn.Linear(2, 1, bias=False)
    vectors = rehomed(model)
    vector, present = vectors.collect_gradients()
    assert present.tolist() == [0]
    vector[:2] = 3.0
    vectors.accept_gradients(np.array([1.0]))
    assert model.weight.grad.tolist() == [[3.0, 3.0]]


def test_sparse_gradients_are_exchanged_dense():
    model = nn.Embedding(5, 2, sparse=True)
    vectors = rehomed(model)
    model(torch.tensor([1, 3])).sum().backward()
    vector, _ = vectors.collect_gradients()
    assert vector[:10].tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0]


def test_channels_last_weights_stay_channels_last():
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    before = model.weight.detach().clone()
    strides = model.weight.stride()
    rehomed(model)
    assert model.weight.stride() == strides
    assert torch.equal(model.weight, before)


def test_a_buffer_that_is_replaced_in_every_step_is_found_again():
    class Moving(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 1)
            self.register_buffer("mean", torch.zeros(2))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.mean = 0.5 * self.mean + x.mean(0)
            self.count = self.count + 1
            return self.linear(x)

    model = Moving()
    vectors = rehomed(model)
    model(torch.ones(3, 2))
    assert vectors.buffers()[:2].tolist() == [1.0, 1.0]
    vectors.buffers()[:2] = 7.0
    vectors.accept_buffers()
    assert model.mean.tolist() == [7.0, 7.0]
    assert vectors.constants().view(np.int64).tolist() == [1]


def test_another_order_in_memory_is_another_layout():
    usual = TorchVectors(nn.Conv2d(3, 4, 3)).layout
    other = TorchVectors(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)).layout
    assert usual.fingerprint() != other.fingerprint()
    assert "with strides (27, 1, 9, 3)" in differences([usual, other])[0]


def test_release_gives_every_parameter_memory_of_its_own():
    model = nn.Linear(100, 100)
    before = model.weight.detach().clone()
    vectors = rehomed(model)
    vectors.release()
    assert model.weight.untyped_storage().nbytes() == model.weight.nbytes
    assert torch.equal(model.weight, before)
    vectors.parameters()[:] = 0
    assert torch.equal(model.weight, before)


def test_zeroed_gradients_are_used_in_place():
    model = nn.Linear(2, 1, bias=False)
    vectors = rehomed(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        vector, present = vectors.collect_gradients()
        vectors.accept_gradients(present)
        assert vector[:2].tolist() == [1.0, 1.0]
        optimizer.zero_grad(set_to_none=False)


def sharing_memory():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.data)
    return model


def with_expanded_buffer():
    model = nn.Linear(2, 2)
    model.register_buffer("wide", torch.zeros(1).expand(5))
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.LazyLinear(3), "has no shape yet"),
        (nn.Linear(2, 2, dtype=torch.complex64), "only real ones"),
        (nn.ReLU(), "no parameter to train"),
        (sharing_memory(), "'0.weight' and '1.weight' share memory but are two objects"),
        (with_expanded_buffer(), "buffer 'wide' is an expanded tensor"),
    ],
)
def test_what_cannot_be_trained_is_said(model, message):
    with pytest.raises(ReplicaError, match=message):
        TorchVectors(model)


def batch(inputs, targets):
    return Batch(inputs, targets, len(inputs), np.arange(len(inputs)) + 100)


def test_a_label_out_of_range_names_label_and_sample():
    replica = make_replica(nn.Linear(2, 3), "cross_entropy", {"name": "sgd"})
    with pytest.raises(DataError, match=r"label 7 of sample 101 .* 3 outputs, so labels go from 0"):
        replica.gradients(batch(np.ones((3, 2), np.float32), np.array([0, 7, 1])))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_labels_of_any_integer_type(dtype):
    replica = make_replica(nn.Linear(2, 3), "cross_entropy", {"name": "sgd"})
    assert replica.gradients(batch(np.ones((2, 2), np.float32), np.array([0, 2], dtype))) > 0


def test_a_complaint_that_is_not_about_labels_is_left_alone():
    replica = make_replica(nn.Linear(2, 3), "cross_entropy", {"name": "sgd"})
    with pytest.raises((ValueError, RuntimeError), match="batch_size"):
        replica.gradients(Batch(np.ones((3, 2), np.float32), np.array([0, -100]), 3))


def test_labels_marked_as_ignored_are_no_mistake():
    replica = make_replica(nn.Linear(2, 3), "cross_entropy", {"name": "sgd"})
    assert replica.gradients(batch(np.ones((2, 2), np.float32), np.array([0, -100]))) > 0
    with pytest.raises(DataError, match="label 9 of sample 102"):
        replica.gradients(batch(np.ones((3, 2), np.float32), np.array([0, -100, 9])))


def test_targets_of_a_users_own_loss_are_left_alone():
    shapes = []

    def loss(outputs, targets):
        shapes.append((tuple(outputs.shape), tuple(targets.shape), targets.dtype))
        return outputs.sum()

    replica = make_replica(nn.Linear(2, 1), loss, {"name": "sgd"})
    inputs = np.ones((3, 2), np.float32)
    replica.gradients(batch(inputs, np.zeros(3)))
    replica.gradients(batch(inputs, np.zeros((3, 1), np.int32)))
    assert shapes == [((3, 1), (3,), torch.float32), ((3, 1), (3, 1), torch.int64)]


def test_float64_inputs_and_byte_images_fit_a_float32_model():
    model = nn.Linear(2, 1, bias=False)
    replica = make_replica(model, "mse", {"name": "sgd"})
    with torch.no_grad():
        model.weight.fill_(1.0)
    assert replica.gradients(batch(np.ones((2, 2)), np.zeros(2))) == pytest.approx(4.0)
    white = np.full((2, 2), 255, np.uint8)
    assert replica.gradients(batch(white, np.zeros(2))) == pytest.approx(4.0)


def test_targets_in_a_row_do_not_broadcast_against_outputs_in_a_column():
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    replica = make_replica(model, "mse", {"name": "sgd"})
    values = np.array([1.0, 2.0, 3.0])
    assert replica.gradients(batch(values[:, None], values)) == 0.0


def test_classes_in_a_column_are_classes():
    replica = make_replica(nn.Linear(2, 3), "cross_entropy", {"name": "sgd"})
    inputs, labels = np.ones((3, 2), np.float32), np.array([0, 2, 1])
    assert replica.evaluate(batch(inputs, labels)) == replica.evaluate(
        batch(inputs, labels[:, None])
    )


def test_inputs_may_be_tuples_and_mappings():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 1)

        def forward(self, left, right):
            return self.linear(left + right)

    replica = make_replica(Sum(), "mse", {"name": "sgd"})
    ones, zeros = np.ones((3, 2), np.float32), np.zeros((3, 1), np.float32)
    by_place = replica.gradients(batch((ones, ones), zeros))
    assert by_place == replica.gradients(Batch({"left": ones, "right": ones}, zeros, 3))
    pair = namedtuple("pair", "left right")
    assert by_place == replica.gradients(Batch(pair(ones, ones), zeros, 3))


def test_accuracy_counts_one_hot_targets_and_classes_alike():
    replica = make_replica(nn.Linear(2, 3), "cross_entropy", {"name": "sgd"})
    inputs = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    labels = np.arange(20) % 3
    classes = replica.evaluate(batch(inputs, labels))
    one_hot = replica.evaluate(batch(inputs, np.eye(3, dtype=np.float32)[labels]))
    assert classes == pytest.approx(one_hot)
    several = np.eye(3, dtype=np.float32)[labels] + np.eye(3, dtype=np.float32)[(labels + 1) % 3]
    many_labels = make_replica(nn.Linear(2, 3), "binary_crossentropy", {"name": "sgd"})
    for count in (1, 20):  # however it is batched
        assert "correct" not in many_labels.evaluate(batch(inputs[:count], several[:count]))
    assert "correct" not in make_replica(nn.Linear(2, 1), "mse", {"name": "sgd"}).evaluate(
        batch(inputs, np.zeros(20))
    )


@pytest.mark.parametrize(
    "name", ["sgd", "adam", "adamw", "rmsprop", "adadelta", "adagrad", "NAdam"]
)
def test_optimizers_by_name_move_parameters(name):
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    optimizer = make_optimizer({"name": name, "lr": 0.1}, model.parameters())
    assert type(optimizer).__name__.lower() == name.lower()
    assert optimizer.param_groups[0]["lr"] == 0.1
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)


def test_every_setting_reaches_the_optimizer():
    spec = {"name": "adam", "lr": 0.2, "betas": (0.5, 0.6), "weight_decay": 0.1}
    group = make_optimizer(spec, nn.Linear(1, 1).parameters()).param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.2, (0.5, 0.6), 0.1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "adm"}, "optimizer is 'adm', expected one of: .*adam.* Did you mean 'adam'"),
        ({"name": "9" * 4000}, "^optimizer is '9{100}', expected one of: .{1,999}$"),
        ({"name": "adam", "momentum": 0.9}, "adam has no setting momentum; it takes: lr, betas"),
        ({"name": "lbfgs"}, "optimizer lbfgs cannot be used here: it asks for several"),
        ({"name": "SparseAdam"}, "exchanged dense"),
        ({"name": "sgd", "lr": -1.0}, "optimizer sgd: .*-1.0"),
        ({"name": "sgd", "lr": 0.1, "nesterov": True}, "Nesterov momentum requires"),
    ],
)
def test_wrong_optimizers_are_explained(spec, message):
    with pytest.raises(ConfigError, match=message):
        make_optimizer(spec, nn.Linear(1, 1).parameters())


def test_losses_by_name_and_by_function():
    outputs, targets = torch.tensor([[2.0]]), torch.tensor([[0.0]])
    assert find_loss("mse")(outputs, targets) == 4.0
    assert find_loss("mae")(outputs, targets) == 2.0
    assert find_loss(lambda o, t: o.sum())(outputs, targets) == 2.0
    with pytest.raises(ConfigError, match="loss is 'crossentropy', expected one of"):
        find_loss("crossentropy")
    for several in ({"a": "mse"}, ["mse", "mae"]):
        with pytest.raises(ConfigError, match=r"loss is .*mse.*, expected a name or a function"):
            find_loss(several)


def test_places_without_a_label_are_neither_right_nor_wrong():
    outputs = torch.tensor([[[2.0, 0.0, 2.0], [0.0, 2.0, 0.0]]])  # (1, classes, length)
    targets = torch.tensor([[0, 0, -100]])
    assert find_loss("cross_entropy").count_correct(outputs, targets) == {
        "correct": 1.0,
        "counted": 2.0,
    }
