"""A run that does not learn says so, and one that does says nothing."""

import json
import threading

import pytest
from support.line_problem import SAMPLES, fit

from paceline import Callback
from paceline.rules import BSP, EASGD
from paceline.training.loop.divergence import STEPS, Divergence


@pytest.mark.parametrize(
    ("rule", "rate", "said"),
    [
        (BSP(), 0.02, None),
        (BSP(), 1.2, "far above that of the first"),
        (EASGD(every=2), 0.02, None),
        (EASGD(every=2), 1.2, "far above that of the first"),
    ],
)
def test_the_summary_and_the_log_tell(tmp_path, capfd, rule, rate, said):
    hold = [] if isinstance(rule, BSP) else [RankZeroBegins()]
    result = fit(tmp_path, 2, rule, epochs=6, momentum=0.0, rate=rate, callbacks=hold)
    check(capfd, result, said)


class RankZeroBegins(Callback):
    """It judges by its own first steps; an asynchronous worker might take all batches before."""

    def __init__(self):
        self.begun = threading.Event()

    def on_batch_begin(self, trainer, step):
        if trainer.world.rank != 0:
            assert self.begun.wait(60)

    def on_batch_end(self, trainer, step, logs):
        if trainer.world.rank == 0 and step >= STEPS:
            self.begun.set()


@pytest.mark.parametrize(("rate", "said"), [(0.02, None), (1e-7, "no lower than in the first")])
def test_a_loss_that_stays_is_told(tmp_path, capfd, rate, said):
    """Each step sees all samples, so losses do not scatter."""
    result = fit(tmp_path, 1, BSP(), epochs=30, momentum=0.0, rate=rate, batch=SAMPLES)
    check(capfd, result, said)


def check(capfd, result, said):
    warning = json.loads((result.run_dir / "summary.json").read_text())["warning"]
    logged = capfd.readouterr().err
    if said is None:
        assert warning is None
        assert "the loss is" not in logged
    else:
        assert said in warning
        assert said in logged
        assert logged.count("warning: epoch") == 1, "once, not for each epoch"


def test_losses_that_scatter_are_not_called_flat():
    found = Divergence()
    for step in range(STEPS):
        found.see(6.0 if step % 2 else 4.0)
    assert found.judge(5.1) is None
    assert "no lower" in (found.judge(8.0) or "")
    assert "far above" in (found.judge(13.0) or "")


def test_losses_whose_squares_overflow_are_judged():
    """float64 models get there, and so may a checkpoint."""
    found = Divergence()
    for step in range(STEPS):
        found.see(1.5e307 if step % 2 else 1e307)
    assert found.judge(1.2e307) is None
    assert "far above" in (found.judge(1e308) or "")
