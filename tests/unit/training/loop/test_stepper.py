"""The order of a step, told by a model and an exchange that write down what is called."""

import pytest

from paceline.errors import TrainingError
from paceline.observe import Stopwatch
from paceline.sync.interface import Contribution, StepOutcome
from paceline.training.loop.stepper import StepLimits, Stepper, StepWishes


class Model:
    def __init__(self, calls, finite=True):
        self.calls, self.finite = calls, finite

    def clear_gradients(self):
        self.calls.append("clear")

    def gradients_are_finite(self):
        return self.finite

    def clip(self, max_norm):
        self.calls.append(f"clip {max_norm}")

    def apply(self):
        self.calls.append("apply")


class Exchange:
    def __init__(self, calls, outcomes=()):
        self.calls, self.outcomes, self.seen = calls, list(outcomes), []

    def before_step(self, mine, watch):
        self.calls.append("before")
        self.seen.append(mine)
        return self.outcomes.pop(0) if self.outcomes else None

    def after_step(self, mine, watch):
        self.calls.append("after")
        self.seen.append(mine)


def make(outcomes=(), finite=True, wishes=StepWishes, steps_optimizer=False, **limits):
    calls = []
    model, exchange = Model(calls, finite), Exchange(calls, outcomes)
    exchange.steps_optimizer = exchange.filters_nonfinite = steps_optimizer
    return Stepper(3, model, exchange, StepLimits(**limits), Stopwatch(), wishes), exchange, calls


def outcome(weight=1.0, more=True, **more_fields):
    return StepOutcome(4, weight, more, False, **more_fields)


def test_a_step_in_order():
    stepper, exchange, calls = make(clip_norm=2.0, wishes=lambda: StepWishes(save=True))
    assert stepper.step(stepper.contribution(4, 0.5, more=True, loss=8.0)) is None
    assert calls == ["before", "clip 2.0", "apply", "after"]
    assert exchange.seen == [Contribution(4, 0.5, True, loss=8.0, save=True)] * 2
    assert (stepper.steps, stepper.rejected, stepper.refused) == (1, 0, False)


def test_a_refused_contribution_keeps_its_samples_and_loses_weight_and_loss():
    stepper, exchange, calls = make(finite=False)
    stepper.step(Contribution(4, 0.5, more=True, loss=8.0))
    assert calls == ["clear", "before", "after"]
    assert exchange.seen == [Contribution(4, 0.0, more=True)] * 2
    assert (stepper.refused, stepper.rejected) == (True, 1)


def test_the_others_gradients_are_applied_to_a_replica_whose_own_were_refused():
    stepper, _, calls = make([outcome()], finite=False)
    assert stepper.step(Contribution(4, 0.5, more=True)) == outcome()
    assert calls == ["clear", "before", "apply", "after"]


def test_nobody_else_steps_where_the_exchange_does():
    stepper, _, calls = make([outcome()], finite=False, clip_norm=2.0, steps_optimizer=True)
    stepper.step(Contribution(4, 0.5, more=True))
    assert calls == ["before", "after"]


def test_what_the_exchange_rejected_counts_and_keeps_its_loss():
    stepper, exchange, _ = make([outcome(rejected=True)])
    stepper.step(Contribution(4, 0.5, more=True, loss=8.0))
    assert (stepper.refused, stepper.rejected, exchange.seen[0].loss) == (False, 1, 8.0)


def test_too_many_rejected_end_the_run_and_the_error_says_where():
    stepper, _, _ = make(finite=False, max_rejected=1)
    stepper.step(Contribution(4, 0.5, more=True))
    text = r"a gradient is not finite at step 2 on rank 3, for sample 7 \(2 rejected, max_reje"
    with pytest.raises(TrainingError, match=text):
        stepper.step(Contribution(4, 0.5, more=True), lambda: "sample 7")


def test_an_optimizer_that_skips_such_steps_itself_is_left_to_it():
    stepper, exchange, _ = make(finite=False, refuses_nonfinite=False)
    stepper.before(Contribution(4, 0.5, more=True))
    assert (exchange.seen[0].weight, stepper.rejected) == (0.5, 0)


def test_draining_takes_part_until_nobody_has_a_batch():
    heard = [outcome(weight) for weight in (1.0, 0.0)]
    last = StepOutcome(0, 0.0, more=False, stop=True)
    stepper, exchange, calls = make([*heard, last])
    assert stepper.drain() == 1
    assert calls == ["clear", "before", "apply", "after", *["clear", "before", "after"] * 2]
    assert set(exchange.seen) == {Contribution()}
    assert stepper.stop_heard
    assert stepper.steps == 0, "they are the other ranks' steps"
