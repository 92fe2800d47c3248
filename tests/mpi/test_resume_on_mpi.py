"""Runs that are interrupted and go on, under real mpirun.

To start a rank with torch takes longer than to train: so one start trains all the cases of its
number of ranks to their interruption, and another one goes on with them.
"""

import json
import re

import pytest

pytestmark = pytest.mark.timeout(120)

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
FEWER_RANKS = {
    "bsp, fewer ranks": {"name": "bsp"},
    "average, fewer ranks": {"name": "average", "every": 5},
}


def cases(ranks, resumed):
    """What a start trains: name, rule, optimizer, stop after so many steps, epochs."""
    found = []
    if ranks == 2:
        if not resumed:
            found += [(f"whole {name}", *case, 0, 2) for name, case in SYNCHRONOUS.items()]
        found += [(name, *case, 27, 2) for name, case in SYNCHRONOUS.items()]
    found += [(name, rule, "sgd", 27, 3) for name, (rule, n) in FREE.items() if n == ranks]
    if ranks == (2 if resumed else 3):
        found += [(name, rule, "sgd", 20, 2) for name, rule in FEWER_RANKS.items()]
    return [(*case[:3], 0, case[4]) for case in found] if resumed else found


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    """What the starts so far have printed, and the folder in which they train."""
    return {"folder": tmp_path_factory.mktemp("runs")}


@pytest.fixture
def train(mpirun, starts):
    """`train(ranks, resumed)`: the outcomes by name, of a start that may have been before."""

    def outcomes(ranks, resumed=False):
        key = (ranks, resumed)
        for before in (2, 3) if resumed else ():
            outcomes(before)  # two ranks go on with what three have begun
        if key not in starts:
            words = (starts["folder"], json.dumps(cases(ranks, resumed)))
            starts[key] = mpirun(ranks, "resume.py", *words, timeout_s=60)
        done = starts[key]
        assert done.returncode == 0, done.stderr
        return dict(json.loads(text) for text in re.findall(r"OUTCOME (.*)", done.stdout))

    return outcomes


def resume(train, name, ranks, before=None):
    """The outcome of a run that was interrupted, on every rank, and has gone on."""
    before = before or ranks
    assert train(before)[name] == {"interrupted": [75] * before}
    return train(ranks, resumed=True)[name]


@pytest.mark.parametrize("ranks", [2, 3])
def test_an_interruption_of_one_rank_stops_all(train, ranks):
    stopped = [name for name, _, _, stop_after, _ in cases(ranks, resumed=False) if stop_after]
    outcomes = train(ranks)
    assert [n for n in outcomes if outcomes[n] == {"interrupted": [75] * ranks}] == stopped


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_resumed_run_equals_the_uninterrupted_one(train, name):
    whole = train(2)[f"whole {name}"]
    assert resume(train, name, 2) == whole
    assert whole["finite"]


@pytest.mark.parametrize(("name", "ranks"), [(name, ranks) for name, (_, ranks) in FREE.items()])
def test_workers_at_their_own_pace_go_on(train, name, ranks):
    resumed = resume(train, name, ranks)
    assert resumed["accuracy"] > 0.85
    assert sum(samples for _, _, samples in resumed["history"]) == 3 * 10_000


@pytest.mark.parametrize("name", FEWER_RANKS)
def test_another_number_of_ranks_goes_on(train, name):
    resumed = resume(train, name, ranks=2, before=3)
    assert [samples for _, _, samples in resumed["history"]] == [10_000, 10_000]
    assert resumed["accuracy"] > 0.85
