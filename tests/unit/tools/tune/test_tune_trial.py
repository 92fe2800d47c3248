"""When a trial may end, and what is said of one that failed."""

import os
import signal

import pytest

from paceline.tools.tune.figures import Estimate
from paceline.tools.tune.trial import Stopped, TrialLimits, explain, judge, stoppable

TEN = TrialLimits.of(10)


def found(rate=100.0, seconds=5.0, error=0.05, steps=100, windows=20):
    return Estimate("samples", rate, error, steps=steps, seconds=seconds, windows=windows)


def test_a_trial_ends_after_its_time():
    assert judge(found(seconds=9.9), None, TEN) is None
    assert judge(found(seconds=10.0), None, TEN) == "measured"


def test_a_trial_ends_when_it_is_sure():
    assert judge(found(error=0.009), None, TEN) == "measured"
    assert judge(found(error=0.009, seconds=3.0), None, TEN) is None, "too soon"
    assert judge(found(error=0.009, steps=19), None, TEN) is None
    assert judge(found(error=0.009, windows=11), None, TEN) is None


def test_a_trial_far_below_the_best_ends_after_a_third_of_its_time():
    assert judge(found(60, seconds=3.4), 100, TEN) == "early"
    assert judge(found(60, seconds=3.3), 100, TEN) is None
    assert judge(found(69, seconds=3.4), 100, TEN) is None, "within its error it is not far below"
    assert judge(found(60, seconds=3.4, windows=3), 100, TEN) is None, "too few to judge"
    assert judge(found(60, seconds=3.4), None, TEN) is None, "there is no best yet"


def test_nothing_ends_early_if_all_is_to_be_measured():
    thorough = TrialLimits.of(10, thorough=True)
    assert judge(found(1, error=0.001), 100, thorough) is None
    assert judge(found(1, seconds=10), 100, thorough) == "measured"


@pytest.mark.parametrize(
    ("code", "errors", "reason"),
    [
        (2, "ConfigError: epochs is 0\n", "exit code 2: ConfigError: epochs is 0"),
        (
            1,
            "Traceback:\nRuntimeError: out of luck\npaceline: RuntimeError on rank 1; all ended\n",
            "exit code 1: RuntimeError: out of luck",
        ),
        (3, "first\nlast\n\n", "exit code 3: last"),
        (137, "paceline: rank 1 was killed\n", "(out of memory?): paceline: rank 1 was killed"),
        (-9, "", "exit code -9 (out of memory?): it printed no reason"),
    ],
)
def test_a_failure_is_explained_in_a_line(code, errors, reason):
    assert explain(code, errors).endswith(reason)


def test_the_first_signal_stops_and_the_next_ones_do_nothing():
    def told_twice():
        with stoppable():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGINT)  # while cleaning up

    with pytest.raises(Stopped) as stop:
        told_twice()
    assert stop.value.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
