"""Every framework by every rule on one tiny problem, under 2 real ranks."""

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "programs"))
import tiny_problem as tiny

FRAMEWORKS = ("torch", "jax", "pytensor")

pytestmark = pytest.mark.timeout(320)  # half a minute, unless others are busy on the machine


@pytest.fixture(scope="module")
def starts():
    """What the one start has printed."""
    return []


@pytest.fixture
def outcomes(mpirun, starts, tmp_path):
    """By framework and rule; all of them train in one start."""
    if not starts:
        starts.append(None)  # a start that hangs must not be tried again by every test
        starts[0] = mpirun(2, "frameworks.py", tmp_path, timeout_s=300)
    done = starts[0]
    assert done is not None, "the start took too long"
    assert done.returncode == 0, done.stderr
    found = [json.loads(text) for text in re.findall(r"OUTCOME (.*)", done.stdout)]
    return {(framework, rule): outcome for framework, rule, outcome in found}


def test_every_framework_trains_by_every_rule(outcomes):
    assert set(outcomes) == {(f, rule) for f in ("numpy", *FRAMEWORKS) for rule in tiny.RULES}
    assert all(outcome["equal"] for outcome in outcomes.values()), outcomes


@pytest.mark.parametrize("rule", tiny.SYNCHRONOUS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_synchronous_rule_takes_the_course_that_it_takes_in_numpy(outcomes, framework, rule):
    """Single precision: rounding grows over 50 steps with momentum, to far less than 1e-4."""
    found, expected = outcomes[framework, rule], outcomes["numpy", rule]
    for figures in ("losses", "val_losses"):
        assert len(found[figures]) == tiny.EPOCHS
        assert found[figures] == pytest.approx(expected[figures], rel=1e-4)


@pytest.mark.parametrize("rule", tiny.FREE)
@pytest.mark.parametrize("framework", ["numpy", *FRAMEWORKS])
def test_a_free_rule_arrives(outcomes, framework, rule):
    """From a loss of 1.3; the synchronous ones come to 0.3."""
    assert outcomes[framework, rule]["val_losses"][-1] < 0.5
