"""Why ranks waited, and what to do about it."""

import math
from dataclasses import replace

import pytest

from paceline.observe import TimeSplit
from paceline.observe.waiting import RunFacts, Waiting, advise, split_waiting


def times(*waits, total=10.0):
    """Of ranks that waited so many seconds."""
    return {rank: TimeSplit(compute=total - wait, wait=wait) for rank, wait in enumerate(waits)}


def test_what_all_have_waited_is_uneven_work_and_the_rest_is_for_the_slow_rank():
    found = split_waiting(times(4.0, 1.0, 4.0), steps=1000)
    assert (found.ranks, found.seconds) == (3, 10)
    assert found.uneven == pytest.approx(0.1)
    assert found.slow == pytest.approx(0.2)
    assert found.share == pytest.approx(0.3)
    assert found.slowest_rank == 1
    assert found.slowness == pytest.approx(9 / 6)


def test_a_rank_that_is_always_slow_is_no_uneven_work():
    found = split_waiting(times(5.0, 0.0), steps=100)
    assert (found.uneven, found.slow) == (0, pytest.approx(0.25))
    assert (found.slowest_rank, found.slowness) == (1, 2)


def test_ranks_that_take_turns_are_uneven_work_alone():
    found = split_waiting(times(3.0, 3.0, 3.0, 3.0), steps=100)
    assert (found.uneven, found.slow) == (pytest.approx(0.3), pytest.approx(0))
    assert found.slowest_rank is None


@pytest.mark.parametrize(("steps", "slowest"), [(40, None), (2000, 1)])
def test_a_rank_that_waits_least_by_chance_is_not_called_slow(steps, slowest):
    assert split_waiting(times(3.5, 2.5), steps).slowest_rank == slowest


def test_communication_is_not_waiting():
    busy = TimeSplit(compute=1.0, communication=8.0, data=1.0)
    found = split_waiting({0: busy, 1: busy}, steps=100)
    assert (found.uneven, found.slow) == (0, 0)


def test_ranks_keep_their_numbers_where_some_do_not_train():
    found = split_waiting({2: TimeSplit(5.0, 5.0), 5: TimeSplit(9.0, 1.0)}, steps=1000)
    assert found.slowest_rank == 5


def test_one_rank_waits_for_nobody():
    found = split_waiting(times(3.0), steps=100)
    assert (found.ranks, found.uneven, found.slow, found.slowest_rank) == (1, 0, 0, None)


@pytest.mark.parametrize(
    "split", [{}, times(0.0, 0.0, total=0.0), {0: TimeSplit(math.nan), 1: TimeSplit(1.0)}]
)
def test_without_time_there_is_nothing_to_split(split):
    assert split_waiting(split, steps=100) is None


def test_ranks_that_only_waited_divide_by_nothing():
    found = split_waiting({0: TimeSplit(wait=1.0), 1: TimeSplit(wait=1.0)}, steps=100)
    assert (found.uneven, found.slowness) == (1, 1)
    assert "up to 100.00x" in advise(replace(found, seconds=9.0), RunFacts(can_cost=False))


def test_the_summary_has_shares_and_the_rank():
    found = split_waiting(times(3.100003, 2.700001), steps=10_000)
    assert found.summary() == {"uneven": 0.27, "slow": 0.02, "slowest_rank": 1}


UNEVEN = Waiting(2, 500, 60.0, uneven=0.27, slow=0.01)
SLOW = Waiting(2, 500, 60.0, uneven=0.01, slow=0.23, slowest_rank=1, slowness=1.92)
BOTH = Waiting(2, 5000, 60.0, uneven=0.27, slow=0.04, slowest_rank=1, slowness=1.12)
TURNS = "now for one of them, now for another"
SLOW_1 = "for rank 1, which is about 1.9x slower than the others"


@pytest.mark.parametrize(
    ("waiting", "facts", "text"),
    [
        (
            UNEVEN,
            RunFacts(),
            f"ranks waited 28 % of the time, {TURNS} (uneven work). If samples differ in cost, "
            "equal cost per step (data.cost) would make the run up to 1.39x faster; dealing them "
            "as ranks get ready (data.deal=dynamic) does the same without known costs.",
        ),
        (
            UNEVEN,
            RunFacts(own_loop=True),
            f"ranks waited 28 % of the time, {TURNS} (uneven work). If samples differ in cost, "
            "equal cost per step (paceline.shard(..., cost=...)) would make the run up to 1.39x "
            "faster; dealing them as ranks get ready (paceline.deal(...)) does the same "
            "without known costs.",
        ),
        (
            SLOW,
            RunFacts(),
            f"ranks waited 23 % of the time {SLOW_1}. Less work for rank 1 "
            "(data.speeds=measured) would make the run up to 1.30x faster.",
        ),
        (
            SLOW,
            RunFacts(own_loop=True),
            f"ranks waited 23 % of the time {SLOW_1}. Less work for rank 1 "
            '(paceline.shard(..., speeds="measured")) would make the run up to 1.30x faster.',
        ),
        (
            BOTH,
            RunFacts(),
            f"ranks waited 31 % of the time: 27 % {TURNS} (uneven work), 4 % for rank 1, which is "
            "about 1.1x slower than the others. If samples differ in cost, equal cost per step "
            "(data.cost) would make the run up to 1.37x faster, with less work for rank 1 "
            "(data.speeds=measured) 1.45x; dealing them as ranks get ready (data.deal=dynamic) "
            "does both without known costs.",
        ),
    ],
)
def test_advice_names_what_to_do_and_what_it_wins(waiting, facts, text):
    assert advise(waiting, facts) == text


def remedy(waiting, **facts):
    """The second sentence."""
    said = advise(waiting, RunFacts(**facts))
    return said.partition(". ")[2]


def test_what_is_used_already_is_not_advised():
    dealt = (
        "Dealing samples as ranks get ready (data.deal=dynamic) would make the run up to 1.39x "
        "faster."
    )
    assert remedy(UNEVEN, can_cost=False) == dealt
    assert remedy(UNEVEN, can_deal=False).endswith(
        "(data.cost) would make the run up to 1.39x faster."
    )
    assert "both" not in remedy(BOTH, can_measure_speeds=False)
    assert remedy(BOTH, can_cost=False, can_deal=False) == (
        "Less work for rank 1 (data.speeds=measured) would make the run up to 1.04x faster."
    )
    assert "data.deal=dynamic" in remedy(SLOW, can_measure_speeds=False)
    nothing = {"can_cost": False, "can_deal": False, "can_measure_speeds": False}
    assert remedy(SLOW, **nothing) == ""


def test_more_ranks_are_the_last_resort_unless_they_have_been_tried():
    nothing = RunFacts(can_cost=False, can_deal=False)
    assert advise(UNEVEN, nothing).endswith(
        "More ranks than cores fill the waiting: paceline tune finds how many."
    )
    assert advise(UNEVEN, nothing, tuned=True) == (
        f"ranks waited 28 % of the time, {TURNS} (uneven work)."
    )


def test_where_cores_are_shared_no_gain_is_promised():
    """Another rank computes while one waits."""
    said = remedy(UNEVEN, crowded=True)
    assert said == (
        "There are more ranks than cores, so others compute meanwhile; with equal cost per step "
        "(data.cost) fewer may be as fast."
    )
    assert "data.deal=dynamic" in remedy(UNEVEN, crowded=True, can_cost=False)
    for waiting in (UNEVEN, SLOW, BOTH):
        assert "faster" not in remedy(waiting, crowded=True)


def test_samples_of_one_shape_point_at_the_machine():
    said = advise(UNEVEN, RunFacts(same_shape=True))
    assert "uneven work" not in said
    assert said.endswith(
        "All samples have the same shape: unless some take longer all the same (data.cost), look "
        "for other programs on these cores."
    )
    assert "data.deal" not in remedy(BOTH, same_shape=True)
    assert remedy(BOTH, same_shape=True).endswith(
        "; less work for rank 1 (data.speeds=measured) would make the run up to 1.04x faster."
    )
    assert remedy(SLOW, same_shape=True) == remedy(SLOW)


def test_a_busy_machine_may_be_the_reason():
    said = "Other programs use these cores, too, and may be the reason."
    assert remedy(BOTH, busy=True) == f"{remedy(BOTH)} {said}"
    same = remedy(UNEVEN, same_shape=True, busy=True)
    assert same.endswith("(data.cost), it is the other programs on these cores.")


@pytest.mark.parametrize(
    "waiting",
    [
        None,
        replace(UNEVEN, uneven=0.02, slow=0.02),
        replace(UNEVEN, ranks=1),
        replace(UNEVEN, seconds=1.0),
        replace(UNEVEN, steps=10),
    ],
    ids=["unmeasured", "little", "alone", "short", "few"],
)
def test_what_is_not_worth_it_gets_no_advice(waiting):
    assert advise(waiting, RunFacts()) is None


def test_ranks_that_do_not_wait_for_each_other_get_no_advice():
    assert advise(BOTH, RunFacts(asynchronous=True)) is None
