"""Runs that are interrupted and go on, under real mpirun."""

import pytest

SYNCHRONOUS = {
    "bsp, adamw": ({"name": "bsp"}, {}, "adamw"),
    "powersgd": ({"name": "bsp"}, {"wire": "powersgd"}, "sgd"),
    "average": ({"name": "average", "every": 5}, {}, "adam"),
    "diloco": ({"name": "diloco", "every": 5}, {}, "adamw"),
}
"""Rule, settings of the exchange, optimizer."""
FREE = {
    "easgd": ({"name": "easgd", "every": 3}, {}, 2),
    "easgd with a server": ({"name": "easgd", "every": 3}, {"servers": 1}, 3),
    "downpour": ({"name": "downpour"}, {}, 2),
    "gossip": ({"name": "gossip"}, {}, 2),
}
"""Rule, settings of the exchange, how many ranks."""
FEWER_RANKS = [{"name": "bsp"}, {"name": "average", "every": 5}]


def train(where, ranks, folder, rule, exchange, optimizer, epochs=2, stop_after=0):
    return where(ranks, "resume:train", folder, rule, exchange, optimizer, stop_after, epochs)


def interrupt(where, ranks, *case, stop_after, epochs=2):
    """An interruption of one rank stops all."""
    outcome = train(where, ranks, *case, stop_after=stop_after, epochs=epochs)
    assert outcome == {"interrupted": [75] * ranks}


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_resumed_run_equals_the_uninterrupted_one(resident, tmp_path, name):
    whole = train(resident, 2, tmp_path / "whole", *SYNCHRONOUS[name])
    interrupt(resident, 2, tmp_path / "part", *SYNCHRONOUS[name], stop_after=27)
    assert train(resident, 2, tmp_path / "part", *SYNCHRONOUS[name]) == whole
    assert whole["finite"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_run_that_another_start_resumes_equals_it_too(resident, own_job, tmp_path, name):
    whole = train(resident, 2, tmp_path / "whole", *SYNCHRONOUS[name])
    interrupt(own_job, 2, tmp_path / "part", *SYNCHRONOUS[name], stop_after=27)
    assert train(own_job, 2, tmp_path / "part", *SYNCHRONOUS[name]) == whole


@pytest.mark.parametrize("name", FREE)
def test_asynchronous_workers_go_on(resident, tmp_path, name):
    """Each checkpoint waits for a step of rank 1, so it makes some, however slow it is."""
    rule, exchange, ranks = FREE[name]
    interrupt(resident, ranks, tmp_path, rule, exchange, "sgd", stop_after=6, epochs=3)
    resumed = train(resident, ranks, tmp_path, rule, exchange, "sgd", epochs=3)
    assert resumed["accuracy"] > 0.85
    assert sum(samples for _, _, samples in resumed["history"]) == 3 * 10_000


@pytest.mark.parametrize("rule", FEWER_RANKS, ids=lambda rule: rule["name"])
def test_another_number_of_ranks_goes_on(resident, tmp_path, rule):
    interrupt(resident, 3, tmp_path, rule, {}, "sgd", stop_after=20)
    resumed = train(resident, 2, tmp_path, rule, {}, "sgd")
    assert [samples for _, _, samples in resumed["history"]] == [10_000, 10_000]
    assert resumed["accuracy"] > 0.85
