"""A run that is interrupted and goes on is the run that never was."""

import itertools
import time

import numpy as np
import pytest
import safetensors.torch
import torch
from support.line_problem import BATCH, SAMPLES, data, weights
from torch import nn

from paceline.checkpoint.store import Store
from paceline.comm import SoloWorld, run_world
from paceline.comm.threads import ThreadWorld
from paceline.errors import CheckpointError, ConfigError, Interrupted, OutputError
from paceline.frameworks.numpy import NumpyReplica
from paceline.rules import BSP, EASGD, Average, DiLoCo
from paceline.training.callbacks import Callback
from paceline.training.trainer import Trainer

RULES = {
    "bsp": (BSP(), {}),
    "bsp, adam, clipped": (BSP(), {"optimizer": {"name": "adam", "lr": 0.02}, "clip_norm": 0.5}),
    "bsp, own copies": (BSP(), {"exchange": {"share": False}}),
    "bsp, schedule": (BSP(), {"schedule": {"name": "cosine", "warmup": 1}}),
    "bsp, powersgd": (BSP(), {"exchange": {"wire": "powersgd", "powersgd_rank": 1}}),
    "average": (Average(), {}),
    "average every 2": (Average(every=2), {}),
    "average every 3": (Average(every=3), {}),
    "average every 3, schedule": (Average(every=3), {"schedule": {"name": "cosine", "warmup": 1}}),
    "diloco, schedule": (DiLoCo(every=4), {"schedule": {"name": "cosine"}}),
    "average after 4": (Average(every=3, start_after=4), {}),
    "average, no momentum": (Average(every=3, keep_momentum=False), {}),
    "diloco": (DiLoCo(every=2), {}),
    "diloco in fragments": (DiLoCo(every=2, fragments=2), {}),
}
every_rule = pytest.mark.parametrize(("rule", "settings"), RULES.values(), ids=RULES)


class At(Callback):
    """Asks for an interruption after some step of one rank."""

    def __init__(self, step, rank=0):
        self.step, self.rank = step, rank

    def on_batch_end(self, trainer, step, logs):
        if trainer.world.rank == self.rank and step == self.step:
            trainer.interrupt()


def wide():
    model = nn.Sequential(nn.Linear(3, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 1))
    chance = np.random.default_rng(1)  # ranks that are threads share torch's
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(chance.normal(size=parameter.shape)))
    return model


def fit(folder, ranks, rule, callbacks=(), model=wide, **settings):
    """The results of all ranks, or the Interrupted that all raise."""
    settings = {"optimizer": {"lr": 0.02, "momentum": 0.9}, "epochs": 3} | settings

    def program(world):
        trainer = Trainer(
            model, data(), data(), world=world, rule=rule, loss="mse", progress="off",
            data={"batch_size": BATCH}, run_dir=str(folder), callbacks=callbacks, **settings,
        )  # fmt: skip
        try:
            return trainer.fit()
        except Interrupted as error:
            return error

    return run_world(ranks, program) if ranks > 1 else [program(SoloWorld())]


def figures(result):
    return [(r.epoch, r.samples, r.train_loss, r.val_loss) for r in result.history]


@every_rule
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path, rule, settings, ranks):
    whole = fit(tmp_path / "whole", ranks, rule, **settings)
    steps = -(-SAMPLES // (BATCH * ranks))
    for step in (1, steps - 1, steps) if ranks < 3 else (steps + 2,):
        folder = tmp_path / f"after{step}"
        for found in fit(folder, ranks, rule, [At(step, ranks - 1)], **settings):
            assert isinstance(found, Interrupted), found
            assert f"again with resume='{folder}'" in str(found)
        resumed = fit(folder, ranks, rule, resume="auto", **settings)
        for one, other in zip(resumed, whole, strict=True):
            assert weights(one.model).tobytes() == weights(other.model).tobytes()
            assert figures(one) == figures(other)


WIRES = {
    "bsp, bfloat16, shared": (BSP(), {"wire": "bfloat16"}),
    "bsp, int8, own copies": (BSP(), {"wire": "int8", "share": False}),
    "average, int8": (Average(every=3), {"wire": "int8"}),
    "diloco in fragments, float16": (DiLoCo(every=2, fragments=2), {"wire": "float16"}),
}


@pytest.mark.parametrize(("rule", "exchange"), WIRES.values(), ids=WIRES)
def test_what_rounding_kept_back_is_remembered(tmp_path, monkeypatch, rule, exchange):
    """Every rank on a node of its own: inside a node nothing is coded."""
    plain = ThreadWorld.__init__

    def apart(self, rank, size, hub):
        plain(self, rank, size, hub)
        self.node_ranks = (rank,)

    monkeypatch.setattr(ThreadWorld, "__init__", apart)
    whole = fit(tmp_path / "whole", 2, rule, exchange=exchange)
    for step in (3, 9):
        fit(tmp_path / f"run{step}", 2, rule, [At(step, 1)], exchange=exchange)
        resumed = fit(tmp_path / f"run{step}", 2, rule, resume="auto", exchange=exchange)
        assert weights(resumed[1].model).tobytes() == weights(whole[1].model).tobytes()


def test_random_numbers_go_on(tmp_path):
    """Of one rank; ranks that are threads share a generator, see the tests under mpirun."""

    def dropping():
        return nn.Sequential(nn.Linear(3, 9), nn.Dropout(0.3), nn.Linear(9, 1))

    whole = fit(tmp_path / "whole", 1, BSP(), model=dropping)
    fit(tmp_path / "run", 1, BSP(), [At(5)], model=dropping)
    torch.manual_seed(99)
    resumed = fit(tmp_path / "run", 1, BSP(), model=dropping, resume="auto")
    assert weights(resumed[0].model).tobytes() == weights(whole[0].model).tobytes()


def test_a_framework_of_ones_own_goes_on(tmp_path):
    def build():
        def loss(arrays, batch):
            apart = batch.inputs @ arrays["w"] - batch.targets[:, 0]
            return float(np.mean(apart**2)), {"w": 2 * batch.inputs.T @ apart / len(apart)}

        return NumpyReplica({"w": np.zeros(3, np.float32)}, loss, lr=0.02, momentum=0.9)

    def run(folder, **more):
        def program(world):
            trainer = Trainer(
                build, data(), world=world, progress="off", data={"batch_size": BATCH},
                run_dir=str(folder), **more,
            )  # fmt: skip
            try:
                return trainer.fit().model.arrays["w"].copy()
            except Interrupted:
                return None

        return run_world(2, program)

    whole = run(tmp_path / "whole")
    assert run(tmp_path / "run", callbacks=[At(4)]) == [None, None]
    assert run(tmp_path / "run", resume="auto")[1].tobytes() == whole[1].tobytes()


def test_early_stopping_remembers(tmp_path):
    settings = {"stop": {"patience": 2}, "epochs": 9, "optimizer": {"lr": 1e-9, "momentum": 0.0}}
    whole = fit(tmp_path / "whole", 2, BSP(), **settings)
    assert len(whole[0].history) < 9
    fit(tmp_path / "run", 2, BSP(), [At(18)], **settings)
    resumed = fit(tmp_path / "run", 2, BSP(), resume="auto", **settings)
    assert figures(resumed[0]) == figures(whole[0])
    assert resumed[0].summary["stopped"] == whole[0].summary["stopped"]
    again = fit(tmp_path / "run", 2, BSP(), resume="auto", checkpoint_every="epoch", **settings)
    assert figures(again[0]) == figures(whole[0])


def test_callbacks_may_remember(tmp_path):
    class Counter(At):
        count = 0

        def on_batch_end(self, trainer, step, logs):
            self.count += 1
            super().on_batch_end(trainer, step, logs)

        def state(self):
            return {"count": self.count}

        def accept_state(self, state):
            self.count = state["count"]

    fit(tmp_path / "run", 1, BSP(), [Counter(5)])
    counter = Counter(None)
    fit(tmp_path / "run", 1, BSP(), [counter], resume="auto")
    assert counter.count == 3 * -(-SAMPLES // BATCH)


@pytest.mark.parametrize(
    ("every", "steps"),
    [(5, [5, 10, 15, 20, 24]), ("epoch", [8, 16, 24]), (None, []), ("0.0001s", range(1, 25))],
)
def test_checkpoints_come_as_often_as_asked(tmp_path, every, steps):
    fit(tmp_path / "run", 2, BSP(), checkpoint_every=every, keep_checkpoints=99)
    names = Store(tmp_path / "run" / "checkpoints").names()
    assert names == [f"step-{step:08d}" for step in steps]


def test_so_many_checkpoints_are_kept(tmp_path):
    fit(tmp_path / "run", 2, BSP(), checkpoint_every=5, keep_checkpoints=3)
    names = Store(tmp_path / "run" / "checkpoints").names()
    assert names == ["step-00000015", "step-00000020", "step-00000024"]


@every_rule
def test_any_checkpoint_of_a_run_leads_to_its_end(tmp_path, rule, settings):
    whole = fit(tmp_path / "run", 2, rule, checkpoint_every=5, keep_checkpoints=9, **settings)
    folder = tmp_path / "run" / "checkpoints"
    for name in reversed(Store(folder).names()):
        found = fit(tmp_path / "run", 2, rule, resume=str(tmp_path / "run"), **settings)
        assert weights(found[0].model).tobytes() == weights(whole[0].model).tobytes(), name
        assert figures(found[0]) == figures(whole[0])
        (folder / name).rename(folder / f"gone-{name}x")


def test_a_damaged_checkpoint_is_passed_over(tmp_path, capsys):
    whole = fit(tmp_path / "run", 2, BSP(), checkpoint_every=5)
    newest = tmp_path / "run" / "checkpoints" / "step-00000024"
    content = bytearray((newest / "common.safetensors").read_bytes())
    content[-3] ^= 1
    (newest / "common.safetensors").write_bytes(content)
    again = fit(tmp_path / "run", 2, BSP(), resume="auto")
    said = capsys.readouterr().err
    assert "step-00000024 is damaged" in said
    assert "step-00000020 before it is used" in said
    assert weights(again[0].model).tobytes() == weights(whole[0].model).tobytes()


def test_more_epochs_may_follow(tmp_path):
    whole = fit(tmp_path / "whole", 2, BSP(), epochs=4)
    fit(tmp_path / "run", 2, BSP(), epochs=2, checkpoint_every="epoch")
    more = fit(tmp_path / "run", 2, BSP(), epochs=4, resume="auto")
    assert weights(more[0].model).tobytes() == weights(whole[0].model).tobytes()


@pytest.mark.parametrize("rule", [BSP(), EASGD()], ids=["bsp", "easgd"])
def test_the_best_model_is_kept_beside_the_last(tmp_path, rule):
    """The learning rate explodes after two epochs, and again after the run has been resumed."""

    class Explode(Callback):
        def on_epoch_begin(self, trainer, epoch):
            if epoch > 2:
                trainer.replica.scale_learning_rate(6.0)

    settings = {"keep": "best", "checkpoint_every": "epoch", "callbacks": [Explode()]}
    kept = []
    for epochs in (3, 4):
        [done] = fit(tmp_path / "run", 1, rule, epochs=epochs, resume="auto", **settings)
        kept.append((tmp_path / "run" / "best.safetensors").read_bytes())
    losses = [record.val_loss for record in done.history]
    assert min(losses) == losses[1]
    assert kept[0] == kept[1]
    best = wide()
    best.load_state_dict(safetensors.torch.load(kept[0]))
    x, y = map(torch.from_numpy, data())
    with torch.no_grad():
        found = float(nn.functional.mse_loss(best.eval()(x), y))
    assert found == pytest.approx(losses[1], rel=1e-5)


def test_another_learning_rate_may_follow(tmp_path):
    fit(tmp_path / "run", 2, BSP(), epochs=2, checkpoint_every="epoch")
    settings = {"optimizer": {"lr": 0.005, "momentum": 0.9}}
    more = fit(tmp_path / "run", 2, BSP(), epochs=3, resume="auto", **settings)
    assert [record.learning_rate for record in more[0].history] == [0.02, 0.02, 0.005]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"seed": 7}, "seed was 1, is 7"),
        ({"rule": DiLoCo()}, "rule was bsp, is diloco"),
        (
            {"model": lambda: nn.Linear(3, 1)},
            r"another model: .*; the run has '0.weight' \(9, 3\) float32, which the model lacks",
        ),
    ],
    ids=["seed", "rule", "model"],
)
def test_another_run_is_refused(tmp_path, change, complaint):
    fit(tmp_path / "run", 1, BSP(), epochs=1, checkpoint_every="epoch")
    with pytest.raises(CheckpointError, match=complaint):
        fit(tmp_path / "run", 1, **({"rule": BSP(), "resume": "auto"} | change))


def test_a_run_without_checkpoints_is_refused(tmp_path):
    fit(tmp_path / "run", 1, BSP(), epochs=1)
    with pytest.raises(CheckpointError, match="holds no checkpoint to go on from"):
        fit(tmp_path / "run", 1, BSP(), resume=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="holds an earlier run; choose another run_dir, or go on"):
        fit(tmp_path / "run", 1, BSP())


def test_a_time_limit_interrupts(tmp_path):
    found = fit(tmp_path / "run", 2, BSP(), epochs=100_000, max_time="0.5s")
    assert all(isinstance(error, Interrupted) and error.code == 75 for error in found)
    assert "max_time 0.5s" in str(found[0])
    assert "model and data were given in Python: start the same again with resume=" in str(found[0])
    assert len(Store(tmp_path / "run" / "checkpoints").names()) == 1


def test_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch, capsys):
    import paceline.checkpoint.store as store

    whole = fit(tmp_path / "whole", 2, BSP())

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_file", full)
    found = fit(tmp_path / "run", 2, BSP(), checkpoint_every=5)
    assert "No space left on device" in capsys.readouterr().err
    assert weights(found[0].model).tobytes() == weights(whole[0].model).tobytes()


def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch):
    whole = fit(tmp_path / "whole", 2, Average(every=3))
    jumps = itertools.cycle([86_400.0, -86_400.0, 0.0])
    plain = time.time
    monkeypatch.setattr(time, "time", lambda: plain() + next(jumps))
    settings = {"checkpoint_every": "1h", "max_time": "1h"}
    found = fit(tmp_path / "run", 2, Average(every=3), **settings)
    assert weights(found[0].model).tobytes() == weights(whole[0].model).tobytes()
    steps = 3 * -(-SAMPLES // (2 * BATCH))
    assert Store(tmp_path / "run" / "checkpoints").names() == [f"step-{steps:08d}"]


@pytest.mark.parametrize("rule", [BSP(), EASGD(every=2)], ids=lambda rule: rule.name)
def test_a_checkpoint_that_cannot_begin_is_tried_again_a_period_later(tmp_path, monkeypatch, rule):
    tried = []

    def full(self, name):
        tried.append(name)
        raise OutputError("No space left on device")

    monkeypatch.setattr(Store, "begin", full)
    fit(tmp_path / "run", 2, rule, checkpoint_every=8)
    assert 1 <= len(tried) <= 3 * -(-SAMPLES // BATCH) // 8 + 1
