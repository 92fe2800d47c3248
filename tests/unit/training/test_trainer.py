"""Training end to end in worlds of threads, against loops written out by hand."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import paceline
from paceline.comm import SoloWorld, run_world
from paceline.comm.rank0 import on_rank0
from paceline.data import epoch_order
from paceline.errors import ConfigError, DataError, ReplicaError, TrainingError
from paceline.frameworks.numpy import NumpyReplica
from paceline.observe import History, read_events
from paceline.training.run_dir import write_json
from paceline.training.trainer import Trainer

SAMPLES = 330


def data(samples=SAMPLES, classes=4):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(samples, 6)).astype(np.float32)
    return inputs, (inputs[:, :classes].argmax(axis=1)).astype(np.int64)


def network():
    """The same on every rank: threads share torch's random numbers, so it takes none of them."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    rng = np.random.default_rng(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape) * 0.3))
    return model


def random_network():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))


def fit(tmp_path, ranks=1, **settings):
    """Train on that many ranks; the results in rank order."""
    given = {"model": network, "train": data(), "progress": "off", "epochs": 2} | settings
    batch = given.pop("batch_size", 32)
    callbacks = given.pop("callbacks", list)
    given.setdefault("data", {})
    given["data"] = {"batch_size": batch} | given["data"]
    given["run_dir"] = str(tmp_path / f"run-{ranks}-{len(list(tmp_path.iterdir()))}")

    def program(world):
        return Trainer(world=world, callbacks=callbacks(), **given).fit()

    return run_world(ranks, program) if ranks > 1 else [program(SoloWorld())]


def parameters(result):
    return np.concatenate([p.detach().numpy().ravel() for p in result.model.parameters()])


def step_losses(result):
    """The mean loss of each step over the ranks, weighted by samples, from the event logs."""
    steps: dict[int, list[tuple[float, int]]] = {}
    for event in read_events(result.run_dir / "events"):
        if event["event"] == "step":
            steps.setdefault(event["step"], []).append((event["loss"], event["samples"]))
    return [
        sum(loss * n for loss, n in steps[s]) / sum(n for _, n in steps[s]) for s in sorted(steps)
    ]


def plain_loop(build=network, epochs=2, batch_size=32, seed=1):
    """The same training, written out in plain torch."""
    inputs, targets = (torch.from_numpy(array) for array in data())
    torch.manual_seed(seed)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for epoch in range(epochs):
        order = epoch_order(SAMPLES, seed, epoch)
        for start in range(0, SAMPLES, batch_size):
            rows = torch.from_numpy(order[start : start + batch_size])
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


@pytest.mark.parametrize("build", [network, random_network])
def test_one_rank_is_the_plain_torch_loop_bit_for_bit(tmp_path, build):
    [result] = fit(tmp_path, model=build)
    model, losses = plain_loop(build)
    assert step_losses(result) == losses
    ours = [p.detach().numpy().tobytes() for p in result.model.parameters()]
    assert ours == [p.detach().numpy().tobytes() for p in model.parameters()]


@pytest.mark.parametrize(("ranks", "batch_size"), [(2, 16), (4, 8)])
def test_many_ranks_follow_one_rank_with_the_same_global_batch(tmp_path, ranks, batch_size):
    [one] = fit(tmp_path, epochs=5)
    many = fit(tmp_path, ranks, batch_size=batch_size, epochs=5)
    losses = step_losses(many[0])
    assert len(losses) == 55
    assert losses == pytest.approx(step_losses(one), rel=1e-5)
    for result in many:
        assert parameters(result).tobytes() == parameters(many[0]).tobytes()


def test_the_train_loss_of_an_epoch_is_the_mean_over_all_samples(tmp_path):
    many = fit(tmp_path, 3, batch_size=32, epochs=1)  # the last step is smaller
    events = [e for e in read_events(many[0].run_dir / "events") if e["event"] == "step"]
    mean = sum(e["loss"] * e["samples"] for e in events) / SAMPLES
    for result in many:
        assert result.history[0].train_loss == pytest.approx(mean, rel=1e-9)


class TwoHeads(nn.Module):
    """One head is used for inputs that begin with a positive number, one never."""

    def __init__(self):
        super().__init__()
        self.body, self.some, self.never = network(), nn.Linear(4, 4), nn.Linear(4, 4)
        with torch.no_grad():
            for head in (self.some, self.never):
                head.weight.copy_(torch.eye(4))
                head.bias.fill_(0.5)

    def forward(self, x):
        y = self.body(x)
        return self.some(y) if float(x[0, 0]) > 0 else y


def test_parameters_without_gradients_are_treated_as_in_plain_torch(tmp_path):
    """Weight decay moves a parameter only in steps in which some rank has a gradient for it."""
    inputs, targets = data()
    inputs[:, 0] = np.where(np.arange(SAMPLES) < 165, 1.0, -1.0)  # unshuffled: rank 0's first
    settings = {
        "model": TwoHeads, "train": (inputs, targets), "epochs": 1, "batch_size": 11,
        "data": {"shuffle": False},
        "optimizer": {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.3},
    }  # fmt: skip
    results = fit(tmp_path, 2, **settings)
    for result in results:
        assert torch.equal(result.model.never.weight, torch.eye(4))  # no rank had a gradient
        assert not torch.equal(result.model.some.weight, torch.eye(4))
        assert parameters(result).tobytes() == parameters(results[0]).tobytes()


def test_a_broadcast_that_did_not_arrive_is_noticed(tmp_path):
    class Deaf(NumpyReplica):
        """Its parameters are a copy, and what is written to the copy never reaches it."""

        def parameters(self):
            return super().parameters().copy()

    ranks = iter(range(3))

    def build():
        arrays = {"w": np.full(3, next(ranks), np.float32)}
        return Deaf(arrays, lambda arrays, batch: (0.0, {"w": np.zeros(3)}))

    with pytest.raises(ReplicaError, match=r"parameters on rank .* differ from rank 0's"):
        fit(tmp_path, 3, model=build)


def test_the_same_run_twice_is_bit_identical(tmp_path):
    first, second = (fit(tmp_path, 3, batch_size=11)[0] for _ in range(2))
    assert parameters(first).tobytes() == parameters(second).tobytes()
    assert [r.train_loss for r in first.history] == [r.train_loss for r in second.history]


def test_another_seed_is_another_run(tmp_path):
    assert step_losses(fit(tmp_path)[0]) != step_losses(fit(tmp_path, seed=2)[0])


def test_accumulation_equals_the_larger_batch(tmp_path):
    [whole] = fit(tmp_path, batch_size=32)
    [parts] = fit(tmp_path, batch_size=8, accumulate=4)
    both = fit(tmp_path, 2, batch_size=8, accumulate=2)[0]
    assert step_losses(parts) == pytest.approx(step_losses(whole), rel=1e-5)
    assert step_losses(both) == pytest.approx(step_losses(whole), rel=1e-5)


def test_the_learning_rate_follows_the_schedule(tmp_path):
    [result] = fit(tmp_path, epochs=4, schedule={"name": "step", "every": 2, "gamma": 0.5})
    assert [r.learning_rate for r in result.history] == pytest.approx([0.05, 0.05, 0.025, 0.025])
    [warm] = fit(tmp_path, epochs=1, schedule={"warmup": 1})
    assert warm.history[0].learning_rate == pytest.approx(0.05 * 10 * 32 / SAMPLES)


def test_clipping_changes_the_course(tmp_path):
    [free], [held] = fit(tmp_path), fit(tmp_path, clip_norm=1e-3)
    [many] = [fit(tmp_path, 2, batch_size=16, clip_norm=1e-3)[0]]
    assert held.history[-1].train_loss > free.history[-1].train_loss + 0.05
    assert step_losses(many) == pytest.approx(step_losses(held), rel=1e-5)


@pytest.mark.parametrize("name", ["adam", "adagrad"])
def test_other_optimizers_on_many_ranks(tmp_path, name):
    settings = {"optimizer": {"name": name, "lr": 0.01}, "epochs": 3}
    [one], many = fit(tmp_path, **settings), fit(tmp_path, 2, batch_size=16, **settings)[0]
    assert step_losses(many) == pytest.approx(step_losses(one), rel=1e-4)


def test_an_optimizer_may_be_a_function_of_the_parameters(tmp_path):
    [result] = fit(tmp_path, optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
    assert step_losses(result) == plain_loop()[1]


def test_validation_is_exact_however_it_is_sharded(tmp_path):
    settings = {"validation": data(101), "epochs": 1, "data": {"validation_batch_size": 7}}
    [one] = fit(tmp_path, **settings)
    inputs, targets = (torch.from_numpy(array) for array in data(101))
    with torch.no_grad():
        outputs = one.model(inputs)
    loss = nn.functional.cross_entropy(outputs, targets).item()
    accuracy = (outputs.argmax(1) == targets).float().mean().item()
    assert one.summary["val_loss"] == pytest.approx(loss, rel=1e-5)
    assert one.summary["val_accuracy"] == pytest.approx(accuracy, rel=1e-6)
    three = fit(tmp_path, 3, **settings)
    with torch.no_grad():
        outputs = three[0].model(inputs)
    loss = nn.functional.cross_entropy(outputs, targets).item()
    assert [r.summary["val_loss"] for r in three] == pytest.approx([loss] * 3, rel=1e-5)


def test_more_ranks_than_validation_samples_is_fine(tmp_path):
    results = fit(tmp_path, 4, batch_size=8, validation=data(2), epochs=1)
    [loss] = {result.summary["val_loss"] for result in results}
    inputs, targets = (torch.from_numpy(array) for array in data(2))
    with torch.no_grad():
        expected = nn.functional.cross_entropy(results[0].model(inputs), targets).item()
    assert loss == pytest.approx(expected, rel=1e-5)


def test_a_target_stops_all_ranks(tmp_path):
    results = fit(
        tmp_path,
        3,
        batch_size=10,
        epochs=50,
        validation=data(60),
        stop={"target": "val_accuracy>=0.9"},
    )
    epochs = {len(result.history) for result in results}
    assert len(epochs) == 1
    assert epochs.pop() < 50
    assert results[0].summary["val_accuracy"] >= 0.9
    assert "target reached" in results[0].summary["stopped"]


def test_patience_stops_all_ranks(tmp_path):
    results = fit(
        tmp_path,
        2,
        epochs=50,
        validation=data(60),
        optimizer={"lr": 1e-12},
        stop={"patience": 2},
    )
    [epochs] = {len(result.history) for result in results}
    assert epochs in (3, 4, 5)


def test_validation_runs_every_so_many_epochs_and_at_the_end(tmp_path):
    [result] = fit(tmp_path, epochs=5, validate_every=2, validation=data(20))
    measured = [record.val_loss is not None for record in result.history]
    assert measured == [False, True, False, True, True]


class Recorder(paceline.Callback):
    def __init__(self, stop_on_rank=None, at_step=3):
        self.seen = []
        self.stop_on_rank, self.at_step = stop_on_rank, at_step

    def on_train_begin(self, trainer):
        self.seen.append("train_begin")

    def on_epoch_begin(self, trainer, epoch):
        self.seen.append(f"epoch_begin {epoch}")

    def on_batch_begin(self, trainer, step):
        self.seen.append(f"batch_begin {step}")

    def on_batch_end(self, trainer, step, logs):
        self.seen.append(f"batch_end {step} {logs['samples']}")
        if trainer.world.rank == self.stop_on_rank and step == self.at_step:
            trainer.stop()

    def on_validation_end(self, trainer, logs):
        self.seen.append("validation_end")

    def on_epoch_end(self, trainer, epoch, logs):
        self.seen.append(f"epoch_end {epoch}")

    def on_train_end(self, trainer):
        self.seen.append("train_end")


def test_callbacks_see_every_event_in_order(tmp_path):
    recorder = Recorder()
    fit(tmp_path, epochs=1, batch_size=200, validation=data(9), callbacks=lambda: [recorder])
    assert recorder.seen == [
        "train_begin", "epoch_begin 1", "batch_begin 1", "batch_end 1 200",
        "batch_begin 2", "batch_end 2 130", "validation_end", "epoch_end 1", "train_end",
    ]  # fmt: skip


@pytest.mark.parametrize("at_step", [1, 7, 14])
def test_one_rank_that_asks_to_stop_stops_all_at_the_same_step(tmp_path, at_step):
    recorders = []

    def callbacks():
        recorders.append(Recorder(stop_on_rank=2, at_step=at_step))
        return [recorders[-1]]

    results = fit(tmp_path, 3, batch_size=8, epochs=9, callbacks=callbacks)
    last_steps = {[s for s in r.seen if s.startswith("batch_end")][-1] for r in recorders}
    assert last_steps == {f"batch_end {min(14, at_step + 1)} {24 if at_step < 12 else 18}"}
    assert {len(result.history) for result in results} == {1}
    assert results[0].summary["stopped"] == "a callback asked for it"


def test_the_run_directory_tells_the_whole_story(tmp_path):
    result = fit(tmp_path, 2, validation=data(40), epochs=3)[0]
    folder = result.run_dir
    told = {"README.md", "log.txt"}
    names = told | {"config.yaml", "history.jsonl", "summary.json", "events", "model.safetensors"}
    assert {path.name for path in folder.iterdir()} == names
    history = History.load(folder / "history.jsonl")
    assert [record.samples for record in history] == [SAMPLES] * 3
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary) == {
        "val_loss", "val_accuracy", "train_loss", "epochs", "seconds", "samples",
        "samples_per_s", "ranks", "rule", "stopped", "time", "warning", "waiting", "advice",
        "verdict", "workers",
    }  # fmt: skip
    assert set(summary["time"]) == {"compute", "wait", "communication", "data"}
    assert (summary["ranks"], summary["rule"], summary["epochs"]) == (2, "bsp", 3)
    assert sum(summary["time"].values()) <= summary["seconds"] * 1.05
    events = read_events(folder / "events")
    steps = [event for event in events if event["event"] == "step"]
    assert {event["rank"] for event in steps} == {0, 1}
    assert sum(event["samples"] for event in steps) == 3 * SAMPLES
    assert all(event["bytes"] == 0 and event["seconds"] > 0 for event in steps)  # one node
    assert [e["epoch"] for e in events if e["event"] == "epoch" and e["rank"] == 0] == [1, 2, 3]


def test_step_events_can_be_thinned(tmp_path):
    def steps(**settings):
        events = read_events(fit(tmp_path, **settings)[0].run_dir / "events")
        return [event["step"] for event in events if event["event"] == "step"]

    assert steps(events_every=5) == [5, 10, 15, 20]
    assert steps(events_every=0) == []


def test_an_earlier_run_is_not_overwritten(tmp_path):
    [result] = fit(tmp_path)
    with pytest.raises(ConfigError, match="holds an earlier run"):
        Trainer(network, data(), run_dir=str(result.run_dir), world=SoloWorld()).fit()


def test_batch_norm_statistics_are_averaged_over_the_ranks(tmp_path):
    def normed():
        return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4))

    results = fit(tmp_path, 3, model=normed, batch_size=22, epochs=1, optimizer={"lr": 1e-9})
    means = [result.model[0].running_mean.numpy() for result in results]
    assert means[0].tobytes() == means[1].tobytes() == means[2].tobytes()
    inputs, order = data()[0], epoch_order(SAMPLES, 1, 0)
    expected = np.zeros(6)
    for rank in range(3):
        running = np.zeros(6)
        for step in range(5):
            rows = order[step * 66 + rank * 22 : step * 66 + (rank + 1) * 22]
            running = 0.9 * running + 0.1 * inputs[rows].mean(axis=0)
        expected += running / 3
    assert means[0] == pytest.approx(expected, abs=1e-6)
    assert {int(result.model[0].num_batches_tracked) for result in results} == {5}


def test_constant_buffers_keep_every_bit(tmp_path):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 4)
            self.register_buffer("mask", torch.tensor([0.1, -torch.inf, 1 / 3]))

        def forward(self, x):
            return self.linear(x)

    results = fit(tmp_path, 3, model=Masked, batch_size=22)
    for result in results:
        assert torch.equal(result.model.mask, torch.tensor([0.1, -torch.inf, 1 / 3]))


def test_replicas_start_equal_even_if_built_differently(tmp_path):
    def unequal():
        return nn.Linear(6, 4)  # threads share one generator, so each rank draws other numbers

    results = fit(tmp_path, 3, model=unequal, batch_size=22, epochs=1)
    assert len({parameters(result).tobytes() for result in results}) == 1


def test_models_that_disagree_are_named(tmp_path):
    made = iter([4, 4, 5])

    def uneven():
        return nn.Linear(6, next(made))

    with pytest.raises(ReplicaError, match=r"rank \d has 'weight' \(\d, 6\) float32 where rank 0"):
        fit(tmp_path, 3, model=uneven)


def test_a_loss_that_is_not_finite_names_step_rank_and_samples(tmp_path):
    inputs, targets = data()
    inputs[200] = np.nan
    with pytest.raises(TrainingError, match=r"loss is nan at step \d+ on rank \d, for samples"):
        fit(tmp_path, 2, train=(inputs, targets), max_rejected=0)


def test_a_validation_loss_that_is_not_finite_is_an_error(tmp_path):
    inputs, targets = data(30)
    inputs[7] = np.inf
    with pytest.raises(TrainingError, match=r"validation loss is nan on rank 0, for samples 0, 1"):
        fit(tmp_path, 2, validation=(inputs, targets))


def test_a_callback_may_be_any_object(tmp_path):
    class Plain:
        epochs = 0

        def on_epoch_end(self, trainer, epoch, logs):
            Plain.epochs += 1

    fit(tmp_path, callbacks=lambda: [Plain()])
    assert Plain.epochs == 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((data()[0], np.full(SAMPLES, "cat")), "cannot be trained on"),
        ((data()[0], data()[1].astype(float)), "needs whole numbers"),
        (data()[0], "the data has no targets"),
    ],
)
def test_targets_that_do_not_fit_the_loss_are_explained(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message):
        fit(tmp_path, train=arrays)


def test_a_model_that_cannot_take_its_inputs_is_told_their_shape(tmp_path):
    with pytest.raises(RuntimeError) as caught:
        fit(tmp_path, train=(data()[0][:, :5], data()[1]))
    assert "inputs of shape [(32, 5)]" in caught.value.__notes__[0]


def test_labels_out_of_range_are_named(tmp_path):
    inputs, targets = data()
    targets[17] = 9
    with pytest.raises(DataError, match="label 9 of sample 17 is out of range"):
        fit(tmp_path, 2, train=(inputs, targets))


def test_more_ranks_than_samples_is_refused(tmp_path):
    with pytest.raises(DataError, match="4 ranks but only 3"):
        fit(tmp_path, 4, train=data(3))


def test_a_generator_is_trained_on_like_arrays(tmp_path):
    inputs, targets = data()

    def samples():
        yield from zip(inputs, targets, strict=True)

    arrays = fit(tmp_path, 2, data={"shuffle": False})[0]
    stream = fit(tmp_path, 2, train=samples)[0]
    assert step_losses(stream) == step_losses(arrays)
    assert [record.samples for record in stream.history] == [SAMPLES] * 2


def test_streams_of_uneven_length_never_hang_and_lose_nothing(tmp_path):
    """Ranks whose generators differ (each reads its own) still end every epoch together."""
    inputs, targets = data()

    def program(world):
        length = 100 if world.rank == 0 else 300

        def samples():
            yield from zip(inputs[:length], targets[:length], strict=True)

        return Trainer(
            network, samples, world=world, progress="off", epochs=2,
            data={"batch_size": 16}, run_dir=str(tmp_path / "uneven"),
        ).fit()  # fmt: skip

    results = run_world(2, program)
    assert results[0].history[0].samples == results[1].history[0].samples == 50 + 150
    assert parameters(results[0]).tobytes() == parameters(results[1]).tobytes()


def test_a_torch_dataset_is_trained_on_like_arrays(tmp_path):
    dataset = torch.utils.data.TensorDataset(*(torch.from_numpy(array) for array in data()))
    assert step_losses(fit(tmp_path, 2, train=dataset)[0]) == step_losses(fit(tmp_path, 2)[0])


def test_early_stopping_needs_validation_data(tmp_path):
    with pytest.raises(ConfigError, match="need validation data"):
        fit(tmp_path, stop={"patience": 3})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": {"dir": "/tmp"}}, "data.dir is read for mnist only"),
        ({"data": {"keys": ["a", "b"]}}, "data.keys is read for files of named arrays only"),
    ],
)
def test_a_setting_that_nothing_reads_is_an_error(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        fit(tmp_path, **settings)


def test_training_data_must_be_named(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.train is missing"):
        Trainer(network, world=SoloWorld(), run_dir=str(tmp_path / "run")).fit()


def test_an_unwritable_run_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="file/run cannot be written"):
        Trainer(network, data(), world=SoloWorld(), run_dir=str(tmp_path / "file" / "run")).fit()


def test_threads_are_set(tmp_path):
    before = torch.get_num_threads()
    try:
        fit(tmp_path, threads=3, epochs=1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_accumulation_never_computes_on_a_single_sample(tmp_path):
    """Batch normalisation fails on one; the last steps here have 2 samples per rank."""

    def normed():
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))

    results = fit(tmp_path, 2, model=normed, train=data(68), batch_size=8, accumulate=4, epochs=1)
    assert results[0].history[0].samples == 68


def test_a_batch_norm_in_evaluation_mode_stays_there(tmp_path):
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.BatchNorm1d(6).eval(), nn.Linear(6, 4)
            self.modes = []

        def forward(self, x):
            if self.training:
                self.modes.append(self.norm.training)
            return self.linear(self.norm(x))

    [result] = fit(tmp_path, model=Frozen, validation=data(20))
    assert result.model.modes == [False] * 22


def test_a_model_handed_over_in_evaluation_mode_is_trained(tmp_path):
    [result] = fit(tmp_path, model=lambda: random_network().eval(), validation=data(20))
    [other] = fit(tmp_path, model=random_network, validation=data(20))
    assert step_losses(result) == step_losses(other)


def test_lengths_of_data_that_differ_between_ranks_are_named(tmp_path):
    def program(world):
        return Trainer(
            network, data(100 if world.rank else 60), world=world, run_dir=str(tmp_path / "run")
        ).fit()

    with pytest.raises(DataError, match="rank 1 has 100 training samples, rank 0 has 60"):
        run_world(2, program)


def test_warm_up_on_a_stream_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="the length of a stream is not known"):
        fit(tmp_path, train=lambda: zip(*data(), strict=True), schedule={"warmup": 1})


@pytest.mark.parametrize("setting", [{"optimizer": "adam"}, {"loss": "mse"}])
def test_a_replica_has_its_own_optimizer_and_loss(tmp_path, setting):
    def build():
        arrays = {"w": np.zeros(3, np.float32)}
        return NumpyReplica(arrays, lambda arrays, batch: (0.0, {"w": np.zeros(3)}))

    fit(tmp_path, model=build, epochs=1)
    with pytest.raises(ConfigError, match="NumpyReplica, which has its own"):
        fit(tmp_path, model=build, **setting)


@pytest.mark.parametrize("setting", [{"validate_every": 2}, {"data": {"validation_batch_size": 5}}])
def test_settings_of_a_validation_that_does_not_happen_are_errors(tmp_path, setting):
    with pytest.raises(ConfigError, match="there is no validation data"):
        fit(tmp_path, **setting)


def test_a_target_that_no_validation_can_reach_is_an_error(tmp_path):
    values = data()[0], data()[0][:, :4]
    with pytest.raises(ConfigError, match="have no val_accuracy; use one of: val_loss"):
        fit(tmp_path, train=values, validation=values, loss="mse",
            stop={"target": "val_accuracy>=0.9"})  # fmt: skip


def test_a_run_that_is_stopped_between_validations_is_validated(tmp_path):
    class Stop(paceline.Callback):
        def on_epoch_end(self, trainer, epoch, logs):
            if epoch == 2:
                trainer.stop()

    results = fit(
        tmp_path, 2, epochs=9, validate_every=4, validation=data(30), callbacks=lambda: [Stop()]
    )
    assert results[0].summary["epochs"] == 2
    assert results[0].summary["val_loss"] is not None
    assert History.load(results[0].run_dir / "history.jsonl")[-1].val_loss is not None


def test_fit_again_trains_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(network, data(), epochs=1, progress="off", world=SoloWorld())
    first, second = trainer.fit(), trainer.fit()
    assert first.run_dir != second.run_dir
    assert step_losses(first) == step_losses(second)
    assert len(first.history) == len(second.history) == 1
    assert "network" in first.run_dir.name


def test_events_of_a_run_that_failed_are_not_mixed_with_new_ones(tmp_path):
    (tmp_path / "old" / "events").mkdir(parents=True)
    (tmp_path / "old" / "events" / "rank-0000.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="holds an earlier run"):
        Trainer(network, data(), run_dir=str(tmp_path / "old"), world=SoloWorld()).fit()


def test_afterwards_parameters_have_memory_of_their_own(tmp_path):
    [result] = fit(tmp_path)
    for parameter in result.model.parameters():
        assert parameter.untyped_storage().nbytes() == parameter.nbytes


def test_any_error_of_rank_0_reaches_the_others():
    def program(world):
        def action():
            raise KeyError("lost")

        on_rank0(world, action)

    heard = []

    def listen(world):
        try:
            program(world)
        except Exception as error:
            heard.append((world.rank, type(error).__name__))

    run_world(2, listen)
    assert sorted(heard) == [(0, "KeyError"), (1, "WorldError")]


def test_a_summary_is_valid_json_whatever_was_measured(tmp_path):
    write_json(tmp_path / "s.json", {"val_loss": float("nan"), "n": np.float64(2)})
    assert json.loads((tmp_path / "s.json").read_text()) == {"val_loss": None, "n": 2}


def test_a_config_and_settings_do_not_mix():
    with pytest.raises(TypeError, match="not both"):
        Trainer("mnist", config=paceline.Trainer("mnist").config)
