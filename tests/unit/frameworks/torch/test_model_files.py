"""Models and weights of torch in files: what loads, and what is refused since it could run code."""

import json
import os
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

from paceline.comm import SoloWorld
from paceline.config.reading import read_config
from paceline.data import Batch
from paceline.errors import ConfigError
from paceline.frameworks.numpy import NumpyReplica
from paceline.frameworks.registry import load_file, make_replica
from paceline.frameworks.torch.model_files import load_weights
from paceline.training.build import build_replica


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(4 * 36, 3),
    )  # fmt: skip


class Own(nn.Module):
    """A class of a user's own."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 2)


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The network, exported for evaluation with batches of any size."""
    path = tmp_path_factory.mktemp("exported") / "model.pt2"
    sizes = ({0: torch.export.Dim.DYNAMIC},)
    example = (torch.randn(5, 1, 8, 8),)
    torch.export.save(torch.export.export(network().eval(), example, dynamic_shapes=sizes), path)
    return path


def change_program(source, target, change):
    """Copy a .pt2 file with its program changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith(".json"):
                content = change(name, json.loads(content))
                content = json.dumps(content).encode()
            new.writestr(name, content)
    return target


def test_an_exported_model_computes_what_the_model_did(exported):
    model, original = load_file(exported), network()
    assert list(model.state_dict()) == list(original.state_dict())
    inputs = torch.randn(7, 1, 8, 8)
    assert torch.equal(model.eval()(inputs), original.eval()(inputs))


def test_dropout_and_statistics_of_an_exported_model_follow_the_mode(exported):
    model, original = load_file(exported), network()
    inputs = torch.randn(7, 1, 8, 8)
    for each in (model, original):
        torch.manual_seed(1)
        each.train()(inputs)
    before = model.state_dict()["1.running_mean"].clone()
    assert torch.equal(before, original.state_dict()["1.running_mean"])
    assert before.any()
    model.eval()(inputs)
    assert torch.equal(model.state_dict()["1.running_mean"], before)


def test_an_exported_model_trains_as_the_model_does(exported):
    rng = np.random.default_rng(0)
    batch = Batch(rng.normal(size=(6, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 6), 6)
    courses = []
    for model in (load_file(exported), network()):
        torch.manual_seed(1)
        replica = make_replica(model, "cross_entropy", {"name": "sgd", "lr": 0.1})
        losses = []
        for _ in range(3):
            losses.append(replica.gradients(batch))
            replica.apply()
        courses.append((losses, replica.evaluate(batch)))
    assert courses[0] == courses[1]


@pytest.mark.parametrize(
    "target",
    ["torch.os.mkdir", "torch.ops.aten.from_file.default", "torch.ops.aten.__class__.mro"],
)
def test_an_exported_model_that_calls_something_else_is_refused(exported, tmp_path, target):
    def change(name, content):
        if name.endswith("models/model.json"):
            content["graph_module"]["graph"]["nodes"][2]["target"] = target
        return content

    path = change_program(exported, tmp_path / "bad.pt2", change)
    with pytest.raises(ConfigError, match=rf"bad\.pt2: it calls '{target}'"):
        load_file(path)


def test_an_exported_model_with_pickled_weights_is_refused(exported, tmp_path):
    def change(name, content):
        if name.endswith("model_weights_config.json"):
            content["config"]["0.weight"]["use_pickle"] = True
        return content

    path = change_program(exported, tmp_path / "bad.pt2", change)
    with pytest.raises(ConfigError, match=r"'0\.weight' is pickled"):
        load_file(path)


def test_a_file_that_is_no_exported_model_is_named(tmp_path):
    (tmp_path / "bad.pt2").write_bytes(b"PK nonsense")
    with pytest.raises(ConfigError, match=r"bad\.pt2 is not what torch\.export\.save writes"):
        load_file(tmp_path / "bad.pt2")


@pytest.mark.parametrize(
    "module", [network(), nn.TransformerEncoderLayer(8, 2), nn.LSTM(3, 4)], ids=type
)
def test_a_whole_module_of_torchs_own_layers_loads(tmp_path, module):
    torch.save(module, tmp_path / "model.torch")
    found = load_file(tmp_path / "model.torch")
    assert type(found) is type(module)
    for name, tensor in module.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Own, "Own: that is not one of torch's own layers.*file.py:function"),
        (lambda: Own().state_dict(), "holds a state_dict, not a model.*set weights to"),
        (lambda: {"a": 3}, "holds a state_dict"),
        (lambda: torch.ones(2), "holds a Tensor, not a model"),
    ],
)
def test_other_things_that_torch_saves_are_refused(tmp_path, make, message):
    torch.save(make(), tmp_path / "model.pt")
    with pytest.raises(ConfigError, match=message):
        load_file(tmp_path / "model.pt")


def test_nothing_in_a_file_runs(tmp_path):
    torch.save(nn.Sequential(nn.Linear(2, 2)), tmp_path / "sound.pt")
    torch.save(Harmful(tmp_path / "made"), tmp_path / "model.pt")
    with pytest.raises(ConfigError, match=r"needs (posix|os)\.mkdir"):
        load_file(tmp_path / "model.pt")
    assert not (tmp_path / "made").exists()


def test_torchscript_is_refused(tmp_path):
    torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)).save(tmp_path / "model.pt")
    with pytest.raises(ConfigError, match=r"is TorchScript.*torch\.jit\.load"):
        load_file(tmp_path / "model.pt")


def build(model, **settings):
    config = read_config({"model": model, "optimizer": "sgd", **settings})
    return build_replica(config, SoloWorld())


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_weights_begin_a_model(tmp_path, suffix):
    from safetensors.torch import save_file

    trained = {name: tensor + 1 for name, tensor in network().state_dict().items()}
    path = str(tmp_path / f"weights{suffix}")
    save_file(trained, path) if suffix == ".safetensors" else torch.save(trained, path)
    replica = build(network, weights=path)
    found = replica.layout.views(replica.parameters())[0]
    assert np.array_equal(found, trained["0.weight"].numpy())


def test_what_a_run_has_saved_can_be_begun_with_also_where_weights_are_tied(tmp_path):
    def tied():
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model

    saved = make_replica(tied(), "mse", {"name": "sgd", "lr": 0.1})
    path = saved.save(tmp_path / "model")
    fresh = tied()
    load_weights(fresh, str(path))
    assert torch.equal(fresh[1].weight, saved.module[0].weight)


def test_weights_that_do_not_fit_are_told_by_name(tmp_path):
    other = {**network().state_dict(), "more": torch.ones(1), "5.weight": torch.ones(2)}
    del other["0.bias"]
    torch.save(other, tmp_path / "weights.pt")
    with pytest.raises(ConfigError) as failure:
        build(network, weights=str(tmp_path / "weights.pt"))
    text = str(failure.value)
    assert "missing there: 0.bias" in text
    assert "not in the model: more" in text
    assert "5.weight ((2,), expected (3, 144))" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file"),
        ([1, 2], "is not a state_dict"),
        (Own(), "a state_dict holds tensors alone"),
    ],
)
def test_weights_that_are_none(tmp_path, content, message):
    path = tmp_path / "weights.pt"
    if content is not None:
        torch.save(content, path)
    with pytest.raises(ConfigError, match=message):
        build(network, weights=str(path))


def batch_of(samples=8):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(samples, 1, 8, 8)).astype(np.float32)
    return Batch(inputs, rng.integers(0, 3, samples), samples)


def test_bfloat16_is_for_the_layers_and_leaves_weights_and_loss_alone():
    seen = []

    def loss(outputs, targets):
        seen.append(outputs.dtype)
        return nn.functional.cross_entropy(outputs, targets)

    def layers(precision):
        replica = build(network, precision=precision, loss=loss)
        replica.module[0].register_forward_hook(lambda *given: seen.append(given[2].dtype))
        torch.manual_seed(1)
        return replica, replica.gradients(batch_of())

    plain, expected = layers("float32")
    lower, found = layers("bfloat16")
    assert seen == [torch.float32] * 2 + [torch.bfloat16, torch.float32]
    assert found != expected
    assert found == pytest.approx(expected, rel=0.05)
    assert {p.dtype for p in lower.module.parameters()} == {torch.float32}
    gradients = [replica.collect_gradients()[0] for replica in (plain, lower)]
    assert np.dot(*gradients) > 0.99 * np.linalg.norm(gradients[0]) * np.linalg.norm(gradients[1])


def test_bfloat16_of_a_model_that_is_no_float32_is_refused():
    with pytest.raises(ConfigError, match=r"parameters are torch\.float64"):
        build(lambda: network().double(), precision="bfloat16")


def test_what_torch_compile_gives_is_what_runs(monkeypatch):
    """The compiler itself takes long: see tests/mpi/test_compiled_on_mpi.py."""
    calls = []

    def compile(module):
        return lambda *inputs: calls.append(module) or module(*inputs)

    monkeypatch.setattr(torch, "compile", compile)
    replica = build(network, compile=True)
    replica.gradients(batch_of())
    replica.evaluate(batch_of())
    assert calls == [replica.module] * 2
    build(network).gradients(batch_of())
    assert len(calls) == 2


@pytest.mark.parametrize("setting", [{"compile": True}, {"precision": "bfloat16"}])
def test_settings_of_torch_are_refused_for_other_models(setting):
    replica = NumpyReplica({"a": np.ones(2, np.float32)}, None)
    config = read_config({"model": replica, **setting})
    with pytest.raises(ConfigError, match=f"{next(iter(setting))} cannot be set for this model"):
        build_replica(config, SoloWorld())
