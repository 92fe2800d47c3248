"""Injected faults get the right verdict, and a healthy run gets none."""

import pytest

TRAIN = "verdicts:train"


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("compute", "compute"),
        ("data", "data"),
        pytest.param("core", "other load", marks=pytest.mark.slow),
    ],
)
def test_a_slow_rank_of_a_synchronous_run_is_named_with_its_cause(resident, fault, cause):
    found = resident(2, TRAIN, fault, "bsp")
    assert (found["kind"], found["rank"], found["cause"]) == ("rank", 1, cause), found
    assert found["last_in"] > 0.7, found
    assert found["lost"] > 0.1, found
    assert found["sentence"].startswith("rank 1 arrives last in ")


def test_ranks_that_take_turns_are_not_named(resident):
    found = resident(2, TRAIN, "turns", "bsp")
    assert (found["kind"], found["rank"], found["cause"]) == ("turns", None, "uneven work"), found
    assert found["lost"] > 0.2, found


@pytest.mark.parametrize("rule", ["bsp", {"name": "average", "every": 2}, "easgd"])
def test_a_healthy_run_names_nobody(resident, rule):
    found = resident(2, TRAIN, "none", rule)
    # Tests that run beside this one are "other load": to say so is right.
    assert found["kind"] == "even" or found["cause"] == "other load", found


@pytest.mark.parametrize(
    ("rule", "fault", "cause"),
    [
        ({"name": "average", "every": 2}, "compute", "compute"),
        ("easgd", "compute", "compute"),
        pytest.param("easgd", "data", "data", marks=pytest.mark.slow),
        pytest.param("easgd", "core", "other load", marks=pytest.mark.slow),
        pytest.param("gossip", "compute", "compute", marks=pytest.mark.slow),
    ],
)
def test_so_do_other_rules_name_it(resident, rule, fault, cause):
    found = resident(2, TRAIN, fault, rule)
    assert (found["kind"], found["rank"], found["cause"]) == ("rank", 1, cause), found
