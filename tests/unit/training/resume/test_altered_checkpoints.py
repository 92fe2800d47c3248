"""Checkpoints whose checksums are right and whose contents are not: one sentence, no nonsense."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.altered_checkpoints import Altered
from support.line_problem import BATCH, build, data

from paceline.comm import SoloWorld, run_world
from paceline.errors import CheckpointError, Interrupted
from paceline.training.callbacks import Callback
from paceline.training.trainer import Trainer

ADAM = {"name": "adam", "lr": 0.01}


class InSecondEpoch(Callback):
    def on_batch_end(self, trainer: Any, step: int, logs: Any) -> None:
        if trainer.clock.epoch == 1 and trainer.world.rank == 0:
            trainer.interrupt()


def fit(folder: Path, rule: str, callbacks: Any = (), **settings: Any) -> Any:
    def program(world: Any) -> Any:
        trainer = Trainer(
            build, data(), data(), world=world, rule=rule, loss="mse", progress="off", epochs=3,
            data={"batch_size": BATCH}, run_dir=str(folder), optimizer=ADAM, callbacks=callbacks,
            **settings,
        )  # fmt: skip
        try:
            return trainer.fit()
        except Interrupted as error:
            return error

    return run_world(2, program)[0] if rule == "easgd" else program(SoloWorld())


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that were interrupted in their second epoch."""
    folders = {rule: tmp_path_factory.mktemp("runs") / rule for rule in ("bsp", "easgd")}
    for rule, folder in folders.items():
        assert isinstance(fit(folder, rule, [InSecondEpoch()]), Interrupted)
    return folders


CASES: list[tuple[str, str, Any, str]] = [
    ("bsp", "facts.step", "text", "facts.step is 'text', expected a whole number"),
    ("bsp", "facts.ranks", ..., "facts has no ranks"),
    ("bsp", "facts.workers", [], "facts has workers"),
    ("bsp", "facts.workers", [7], "facts has workers"),
    ("bsp", "facts.numbered_for", 0, "facts.numbered_for is 0"),
    ("bsp", "common.history", [], "common.history has the epochs"),
    ("bsp", "common.history.0.time", None, "common.history.0.time is None, expected named values"),
    ("bsp", "common.history.0.epoch", 3, "common.history has the epochs"),
    ("bsp", "common.clock.step", 5000, "common.clock.step is 5000, and facts has"),
    ("bsp", "common.clock.samples", "many", "common.clock.samples is 'many'"),
    ("bsp", "common.remainder.size", 0, "common.remainder.size is 0"),
    ("bsp", "common.remainder.ranges", [[1]], "common.remainder.ranges"),
    ("bsp", "common.stopping.waited", True, "common.stopping.waited is True"),
    ("bsp", "common.parameters", np.zeros(1, np.float32), r"common.parameters is float32 of shape"),
    ("bsp", "common.parameters", np.zeros((2, 2), np.float32), "common.parameters is"),
    ("bsp", "common.optimizer", {}, "damaged"),
    ("bsp", "common.optimizer.groups.0.betas", [0.9], "betas is .*expected 2 numbers"),
    ("bsp", "common.optimizer.state.0.exp_avg", ..., "exp_avg of parameter 0 is missing"),
    ("bsp", "common.optimizer.state.0.exp_avg.values", np.zeros(0, np.float32), "exp_avg of"),
    ("bsp", "common.run.reason", "", "common.run.reason is ''"),
    ("bsp", "common.run.reason", "bored", "a run stops at the end of an epoch"),
    ("bsp", "rank-0.worker.counts.samples", 3.5, "rank-0.worker.counts.samples is 3.5"),
    (
        "bsp",
        "rank-0.worker.estimated_samples",
        1e300,
        "rank-0.worker.estimated_samples is 1e\\+300",
    ),
    ("bsp", "rank-0.worker.position.taken", -1, "rank-0.worker.position.taken is -1"),
    ("bsp", "rank-0.generators.python", 3, "damaged"),
    ("bsp", "rank-0.worker.time", {}, "rank-0.worker.time has no compute"),
    ("bsp", "rank-0.exchange", [], "rank-0.exchange is"),
    ("easgd", "rank-1.exchange.steps", "two", "rank-1.exchange.steps is 'two'"),
    ("easgd", "rank-1.exchange.grants", [0.5], "rank-1.exchange.grants.0 is 0.5"),
    ("easgd", "server-0.ledger.samples", None, "server-0.ledger.samples is None"),
    ("easgd", "server-0.centre", np.zeros(1, np.float32), "the centre has 1 numbers"),
    ("easgd", "common.run.count", {}, "common.run.count has no recorded"),
]


@pytest.mark.parametrize(("rule", "place", "value", "words"), CASES)
def test_an_altered_value(
    stopped: dict[str, Path], tmp_path: Path, rule: str, place: str, value: Any, words: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped[rule], folder)
    Altered(folder).write(tuple(place.split(".")), value)
    with pytest.raises(CheckpointError, match=words) as caught:
        fit(folder, rule, resume=str(folder))
    if rule == "bsp":
        assert f"the checkpoint {folder}" in str(caught.value)
        assert "is damaged: " in str(caught.value)


def test_what_was_not_altered_goes_on(
    stopped: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped["bsp"], folder)
    Altered(folder).write(("common", "stopping", "best"), 0.5)
    with caplog.at_level(logging.WARNING):
        result = fit(folder, "bsp", resume=str(folder))
    assert [record.epoch for record in result.history] == [1, 2, 3]
    assert not caplog.records


@pytest.mark.parametrize("resume", ["auto", "its folder"])
def test_a_run_of_another_format_is_refused(
    stopped: dict[str, Path], tmp_path: Path, resume: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped["bsp"], folder)
    for manifest in folder.glob("checkpoints/*/checkpoint.json"):
        manifest.write_text(manifest.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(CheckpointError, match=r"has format 1, .* reads format 2: finish the run"):
        fit(folder, "bsp", resume="auto" if resume == "auto" else str(folder))
