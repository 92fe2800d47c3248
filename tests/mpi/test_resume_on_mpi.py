"""Runs that are interrupted and go on, under real mpirun."""

import json
import re

import pytest

SYNCHRONOUS = {
    "bsp, adamw": ({"name": "bsp"}, "adamw"),
    "powersgd": ({"name": "bsp", "wire": "powersgd"}, "sgd"),
    "average": ({"name": "average", "every": 5}, "adam"),
    "diloco": ({"name": "diloco", "every": 5}, "adamw"),
}
FREE = {
    "easgd": ({"name": "easgd", "every": 3}, 2),
    "easgd with a server": ({"name": "easgd", "every": 3, "servers": 1}, 3),
    "downpour": ({"name": "downpour"}, 2),
    "gossip": ({"name": "gossip"}, 2),
}


def train(mpirun, folder, rule, ranks, optimizer="sgd", stop_after=0, epochs=2):
    words = (str(folder), json.dumps(rule), optimizer, stop_after, epochs)
    done = mpirun(ranks, "resume.py", *words, timeout_s=60)
    assert done.returncode == (75 if stop_after else 0), done.stderr
    return None if stop_after else json.loads(re.search(r"OUTCOME (.*)", done.stdout)[1])


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("rule", "optimizer"), SYNCHRONOUS.values(), ids=SYNCHRONOUS)
def test_a_resumed_run_equals_the_uninterrupted_one(mpirun, tmp_path, rule, optimizer):
    whole = train(mpirun, tmp_path / "whole", rule, 2, optimizer)
    train(mpirun, tmp_path / "run", rule, 2, optimizer, stop_after=27)
    resumed = train(mpirun, tmp_path / "run", rule, 2, optimizer)
    assert resumed == whole
    assert whole["finite"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("rule", "ranks"), FREE.values(), ids=FREE)
def test_workers_at_their_own_pace_go_on(mpirun, tmp_path, rule, ranks):
    train(mpirun, tmp_path / "run", rule, ranks, stop_after=27, epochs=3)
    resumed = train(mpirun, tmp_path / "run", rule, ranks, epochs=3)
    assert resumed["accuracy"] > 0.85
    assert sum(samples for _, _, samples in resumed["history"]) == 3 * 10_000


@pytest.mark.timeout(120)
@pytest.mark.parametrize("rule", [{"name": "bsp"}, {"name": "average", "every": 5}], ids=str)
def test_another_number_of_ranks_goes_on(mpirun, tmp_path, rule):
    train(mpirun, tmp_path / "run", rule, 3, stop_after=20)
    resumed = train(mpirun, tmp_path / "run", rule, 2)
    assert [samples for _, _, samples in resumed["history"]] == [10_000, 10_000]
    assert resumed["accuracy"] > 0.85
