"""The clock, the schedules and the reasons to stop: all pure."""

import pytest

from paceline.config.reading import read_config
from paceline.config.schedules import Constant, Cosine, Step
from paceline.config.stopping import StopConfig
from paceline.errors import ConfigError
from paceline.training.loop.clock import Clock
from paceline.training.loop.stopping import Stopping


def test_the_clock_counts_samples_of_the_world():
    clock = Clock(samples_per_epoch=10)
    clock.advance(4)
    clock.advance(4)
    assert (clock.step, clock.samples, clock.epochs) == (2, 8, 0.8)
    clock.advance(2)
    clock.end_epoch()
    assert (clock.epoch, clock.samples_in_epoch, clock.epochs) == (1, 0, 1.0)


def test_a_stream_teaches_the_clock_its_length():
    clock = Clock()
    clock.advance(6)
    assert clock.epochs == 0.0
    clock.end_epoch()
    clock.advance(3)
    assert clock.epochs == 1.5


def test_a_longer_epoch_than_the_last_does_not_run_ahead():
    clock = Clock(samples_per_epoch=4)
    clock.advance(9)
    assert clock.epochs == 1.0


def test_constant_does_not_move_unless_warming_up():
    assert not Constant().moves
    assert Constant(warmup=1).moves
    assert Constant().factor(3.0, 10) == 1.0


def test_warm_up_rises_in_a_straight_line():
    schedule = Constant(warmup=2)
    assert [schedule.factor(t, 10) for t in (0.0, 0.5, 1.0, 2.0, 9.0)] == [0, 0.25, 0.5, 1, 1]


def test_step_falls_every_so_many_epochs():
    schedule = Step(every=2, gamma=0.1)
    assert [schedule.factor(t, 6) for t in (0.0, 1.9, 2.0, 4.0)] == pytest.approx([1, 1, 0.1, 0.01])


def test_step_falls_after_the_epochs_that_are_named():
    schedule = Step(at=(1, 4), gamma=0.1)
    factors = [schedule.factor(t, 6) for t in (0.9, 1.0, 3.9, 4.0, 6.0)]
    assert factors == pytest.approx([1, 0.1, 0.1, 0.01, 0.01])


def test_step_is_told_either_a_period_or_epochs():
    with pytest.raises(ConfigError, match="every or at, not both"):
        read_config({"schedule": {"name": "step", "every": 3, "at": [1]}})
    again = read_config({"schedule": {"name": "step", "at": [1]}}).describe()
    assert read_config(again).schedule.at == (1,)  # a run's own config.yaml


def test_cosine_ends_at_its_floor_after_the_warm_up():
    schedule = Cosine(warmup=2, floor=0.1)
    assert schedule.factor(1.0, 10) == pytest.approx(0.5)
    assert schedule.factor(2.0, 10) == pytest.approx(1.0)
    assert schedule.factor(6.0, 10) == pytest.approx(0.55)
    assert schedule.factor(10.0, 10) == pytest.approx(0.1)


def test_a_warm_up_as_long_as_the_run_is_allowed():
    assert Cosine(warmup=5).factor(2.5, 5) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("target", "figures", "reached"),
    [
        ("val_accuracy>=0.97", {"val_accuracy": 0.97}, True),
        ("val_accuracy>=0.97", {"val_accuracy": 0.9699}, False),
        ("val_accuracy>0.97", {"val_accuracy": 0.97}, False),
        ("val_loss <= 4e-2", {"val_loss": 0.03}, True),
        ("train_loss<1", {"train_loss": 1.0}, False),
        ("val_accuracy>=0.97", {"val_accuracy": None}, False),
    ],
)
def test_targets(target, figures, reached):
    assert (Stopping(StopConfig(target=target)).reason(figures) is not None) == reached


def test_patience_counts_validations_without_a_lower_loss():
    stopping = Stopping(StopConfig(patience=2))
    losses = [1.0, 0.9, 0.95, None, 0.9, 0.5]
    reasons = [stopping.reason({"val_loss": loss}) for loss in losses]
    assert [reason is not None for reason in reasons] == [False, False, False, False, True, False]
    assert reasons[4] == "val_loss has not fallen below 0.9000 for 2 validations"
