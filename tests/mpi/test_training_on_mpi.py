"""Numbers of the training loop under real mpirun."""

import json
import re

import pytest


def train(mpirun, folder, ranks, batch_size, rule="bsp"):
    rule = json.dumps(rule)
    done = mpirun(ranks, "train_numbers.py", str(folder), batch_size, rule, timeout_s=100)
    assert done.returncode == 0, done.stderr
    return json.loads(re.search(r"OUTCOME (.*)", done.stdout)[1])


def test_one_rank_of_64_and_two_of_32_follow_the_same_course(mpirun, tmp_path):
    one = train(mpirun, tmp_path / "one", 1, 64)
    two = train(mpirun, tmp_path / "two", 2, 32)
    assert len(one["losses"]) >= 50
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert two["val_loss"] == pytest.approx(one["val_loss"], rel=1e-4)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_same_run_twice_is_bit_identical(mpirun, tmp_path, ranks):
    first = train(mpirun, tmp_path / "first", ranks, 16)
    second = train(mpirun, tmp_path / "second", ranks, 16)
    assert first["parameters"] == second["parameters"]
    assert first["losses"] == second["losses"]


@pytest.mark.parametrize(
    "rule",
    [
        "average",
        {"name": "average", "every": 4, "start_after": 10, "keep_momentum": False},
        {"name": "diloco", "every": 8, "fragments": 2},
    ],
    ids=["distributed epoch", "post-local", "streaming diloco"],
)
def test_rules_that_exchange_weights_repeat_bit_for_bit(mpirun, tmp_path, rule):
    first = train(mpirun, tmp_path / "first", 2, 32, rule)
    second = train(mpirun, tmp_path / "second", 2, 32, rule)
    assert first["parameters"] == second["parameters"]
    assert first["val_loss"] < 1.5  # it has learnt something, from 2.3


def test_a_users_own_loop_keeps_pace(mpirun):
    def weights(ranks, batch_size, extra):
        done = mpirun(ranks, "own_loop.py", batch_size, extra)
        assert done.returncode == 0, done.stderr
        found = re.findall(r"WEIGHTS (\[.*?\])", done.stdout)
        assert len(found) == ranks
        assert len(set(found)) == 1
        return json.loads(found[0])

    assert weights(2, 6, 0) == pytest.approx(weights(1, 12, 0), abs=1e-5)
    assert weights(3, 4, 3) != weights(3, 4, 0)  # uneven loops
