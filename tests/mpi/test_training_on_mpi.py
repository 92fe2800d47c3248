"""Numbers of the training loop under real mpirun."""

import pytest

WEIGHTS = {
    "distributed epoch": "average",
    "post-local": {"name": "average", "every": 4, "start_after": 10, "keep_momentum": False},
    "streaming diloco": {"name": "diloco", "every": 8, "fragments": 2},
}
"""Rules that exchange weights."""
TRAIN = "train_numbers:train"


def test_one_rank_of_64_and_two_of_32_follow_the_same_course(resident, tmp_path):
    one = resident(1, TRAIN, tmp_path / "one", 64, "bsp")
    two = resident(2, TRAIN, tmp_path / "two", 32, "bsp")
    assert len(one["losses"]) >= 50
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert two["val_loss"] == pytest.approx(one["val_loss"], rel=1e-4)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow), 4])
def test_the_same_run_twice_is_bit_identical(resident, tmp_path, ranks):
    first, second = (resident(ranks, TRAIN, tmp_path / name, 16, "bsp") for name in "ab")
    assert first["parameters"] == second["parameters"]
    assert first["losses"] == second["losses"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_jobs_of_their_own_take_the_course_of_the_resident_world(
    resident, own_job, tmp_path, ranks
):
    here = resident(ranks, TRAIN, tmp_path / "resident", 16, "bsp")
    for start in ("first", "second"):
        assert own_job(ranks, TRAIN, tmp_path / start, 16, "bsp") == here


@pytest.mark.parametrize("rule", WEIGHTS)
def test_rules_that_exchange_weights_repeat_bit_for_bit(resident, tmp_path, rule):
    first, second = (resident(2, TRAIN, tmp_path / name, 32, WEIGHTS[rule]) for name in "ab")
    assert first["parameters"] == second["parameters"]
    assert first["val_loss"] < 1.5  # it has learnt something, from 2.3


def test_a_users_own_loop_keeps_pace(resident):
    def weights(ranks, batch_size, extra):
        found = resident.on_all(ranks, "own_loop:train", batch_size, extra)
        assert found == found[:1] * ranks
        return found[0]

    assert weights(2, 6, 0) == pytest.approx(weights(1, 12, 0), abs=1e-5)
    assert weights(3, 4, 3) != weights(3, 4, 0)  # uneven loops
