"""Every framework by every rule on one tiny problem, under 2 real ranks."""

from importlib.util import find_spec

import pytest
from support import tiny_problem as tiny


def slow(framework):
    """One that takes long to import and to compile, and need not be installed."""
    missing = find_spec(framework) is None
    skip = pytest.mark.skipif(missing, reason=f"{framework} is not installed")
    return pytest.param(framework, marks=[pytest.mark.slow, skip])


OTHERS = ["torch", slow("jax"), slow("pytensor")]
"""Those that are compared with numpy."""


def train(resident, folder, framework, rule):
    outcome = resident(2, "frameworks:train", folder, framework, rule)
    assert outcome["equal"]
    return outcome


@pytest.fixture(scope="module")
def in_numpy(resident, tmp_path_factory):
    """The course that a rule takes in numpy."""
    found = {}

    def course(rule):
        if rule not in found:
            found[rule] = train(resident, tmp_path_factory.mktemp("numpy"), "numpy", rule)
        return found[rule]

    return course


@pytest.mark.parametrize("rule", tiny.SYNCHRONOUS)
@pytest.mark.parametrize("framework", OTHERS)
def test_a_synchronous_rule_takes_the_course_that_it_takes_in_numpy(
    resident, in_numpy, tmp_path, framework, rule
):
    """Single precision: rounding grows over 50 steps with momentum, to far less than 1e-4."""
    found, expected = train(resident, tmp_path, framework, rule), in_numpy(rule)
    for figures in ("losses", "val_losses"):
        assert len(found[figures]) == tiny.EPOCHS
        assert found[figures] == pytest.approx(expected[figures], rel=1e-4)


@pytest.mark.parametrize("rule", tiny.FREE)
@pytest.mark.parametrize("framework", ["numpy", *OTHERS])
def test_an_asynchronous_rule_arrives(resident, tmp_path, framework, rule):
    """From a loss of 1.3. They come to 0.3, as the synchronous ones; gossip to 0.6 where one rank
    has made all steps but a few."""
    assert train(resident, tmp_path, framework, rule)["val_losses"][-1] < 0.8
