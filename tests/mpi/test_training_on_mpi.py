"""Numbers of the training loop under real mpirun.

To start a rank with torch takes longer than to train: so one start trains all the cases of its
number of ranks, one after the other.
"""

import json
import re

import pytest

WEIGHTS = {
    "distributed epoch": "average",
    "post-local": {"name": "average", "every": 4, "start_after": 10, "keep_momentum": False},
    "streaming diloco": {"name": "diloco", "every": 8, "fragments": 2},
}
"""Rules that exchange weights."""
CASES = {
    1: [("batch of 64", 64, "bsp")],
    2: [
        ("batch of 32", 32, "bsp"),
        ("bsp", 16, "bsp"),
        *((name, 32, rule) for name, rule in WEIGHTS.items()),
    ],
    3: [("bsp", 16, "bsp")],
    4: [("bsp", 16, "bsp")],
}
"""Name, batch size and rule, by the number of ranks."""


@pytest.fixture(scope="module")
def starts():
    """What the starts so far have printed."""
    return {}


@pytest.fixture
def train(mpirun, starts, tmp_path):
    """`train(ranks, name)`: the outcome of that case, in that one of two starts."""

    def outcome(ranks, name, start="first"):
        key = (ranks, start)
        if key not in starts:
            words = (tmp_path / start, json.dumps(CASES[ranks]))
            starts[key] = mpirun(ranks, "train_numbers.py", *words, timeout_s=100)
        done = starts[key]
        assert done.returncode == 0, done.stderr
        return dict(json.loads(text) for text in re.findall(r"OUTCOME (.*)", done.stdout))[name]

    return outcome


def test_one_rank_of_64_and_two_of_32_follow_the_same_course(train):
    one = train(1, "batch of 64")
    two = train(2, "batch of 32")
    assert len(one["losses"]) >= 50
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert two["val_loss"] == pytest.approx(one["val_loss"], rel=1e-4)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_same_run_twice_is_bit_identical(train, ranks):
    first, second = train(ranks, "bsp"), train(ranks, "bsp", "second")
    assert first["parameters"] == second["parameters"]
    assert first["losses"] == second["losses"]


@pytest.mark.parametrize("rule", WEIGHTS)
def test_rules_that_exchange_weights_repeat_bit_for_bit(train, rule):
    first, second = train(2, rule), train(2, rule, "second")
    assert first["parameters"] == second["parameters"]
    assert first["val_loss"] < 1.5  # it has learnt something, from 2.3


def test_a_users_own_loop_keeps_pace(mpirun):
    def weights(ranks, batch_size, *extras):
        done = mpirun(ranks, "own_loop.py", batch_size, *extras)
        assert done.returncode == 0, done.stderr
        for extra in extras:
            found = re.findall(rf"WEIGHTS {extra} (\[.*?\])", done.stdout)
            assert len(found) == ranks
            assert len(set(found)) == 1
            yield json.loads(found[0])

    (two,), (one,) = weights(2, 6, 0), weights(1, 12, 0)
    assert two == pytest.approx(one, abs=1e-5)
    uneven, even = weights(3, 4, 3, 0)
    assert uneven != even  # uneven loops
