"""Ranks join and leave a run that is under way: under real MPI (Open MPI, whose ULFM it needs)."""

import json

import pytest
from support.launching import KIND
from support.ranks import TESTS

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(KIND != "openmpi", reason="only Open MPI lets ranks join"),
]
SAMPLES, EPOCHS = 250, 2
SLOW = pytest.mark.slow


@pytest.fixture
def run(paceline, tmp_path):
    """`run(2, requests=[...], rule="bsp")`: what the ranks that are there in the end say."""

    def run(ranks, *, code=0, is_elastic=True, **settings):
        program = TESTS / "mpi" / "programs" / "membership.py"
        given = {"epochs": EPOCHS, "run_dir": str(tmp_path / "run"), **settings}
        words = ["run", *(["--elastic"] if is_elastic else []), "-n", ranks, "--", program]
        done = paceline(*words, json.dumps(given), timeout_s=500)
        assert done.returncode == code, done.stderr
        found = json.loads(done.stdout.splitlines()[-1]) if code == 0 else {}
        if is_elastic and code == 0:
            checked = paceline("events", "check", given["run_dir"])
            assert checked.returncode == 0, checked.stdout
            found["events"] = checked.stdout
            assert not (tmp_path / "run" / "membership").exists()
        return {**found, "stderr": done.stderr}

    return run


def generations(run_dir):
    """With how many ranks the run went on after which step."""
    lines = [line for file in run_dir.glob("events/*") for line in file.open()]
    events = [json.loads(line) for line in lines if '"generation",' in line]
    return [(event["ranks"], event["step"]) for event in sorted(events, key=lambda e: e["step"])]


def ask(step, kind, count=0, ranks=()):
    return {"step": step, "kind": kind, "count": count, "ranks": list(ranks)}


def test_ranks_join_and_leave_and_the_leading_one_too(run, tmp_path):
    """Replicas are equal afterwards, every sample is used once, and nobody is called lost."""
    requests = [
        ask(4, "join", 2),
        ask(9, "leave", ranks=[1]),
        ask(12, "scale", 2),
        ask(14, "leave", ranks=[0]),
        ask(20, "scale", 3),
        ask(22, "leave", ranks=[0, 1, 2]),
        ask(23, "join", 99),
    ]
    limits = {"elastic": {"max": 5}}
    found = run(2, requests=requests, check_replicas=1, epochs=4, **limits)
    assert found["samples"] == [SAMPLES] * 4
    assert found["equal"]
    assert found["left"] == 3
    assert generations(tmp_path / "run") == [(2, 0), (4, 4), (3, 9), (2, 12), (1, 14), (3, 20)]
    assert found["losses"][-1] < found["losses"][0]
    assert found["answers"] == [
        "0 ranks would be left, and elastic.min is 1",
        "3 ranks and 99 more are over elastic.max, 5",
    ]
    assert "0 ranks lost, 3 left, 4 joined" in found["events"]


@SLOW
def test_a_run_that_grew_is_one_that_began_there_with_more_ranks(run, tmp_path):
    """Bit for bit, BatchNorm's statistics included."""
    folder = str(tmp_path / "stopped")
    run(2, code=75, is_elastic=False, stop_after=5, run_dir=folder, has_buffers=True)
    expected = run(3, is_elastic=False, resume=folder, run_dir=None, has_buffers=True)
    found = run(2, requests=[ask(6, "join", 1)], has_buffers=True)
    assert found["sizes"] == [2, 3]
    assert found["parameters"] == expected["parameters"]
    assert found["buffers"] == expected["buffers"]
    assert found["val_losses"] == expected["val_losses"]


@SLOW
def test_lost_ranks_are_replaced_and_so_are_those_that_replace_them(run):
    """The leading one is lost, too, and later two that had come, both in the same step."""
    faults = ["sigkill:rank=1,step=4", "sigkill:rank=0,step=14"]
    waits = [ask(step, "") for step in (6, 16, 24)]
    found = run(
        3,
        faults=faults,
        newcomer_faults=["sigkill:rank=2,step=20"],
        requests=waits,
        elastic={"replace": True},
        check_replicas=1,
        epochs=4,
    )
    assert found["left"] == 3
    assert found["samples"] == [SAMPLES] * 4
    assert found["equal"]
    assert "4 ranks lost, 4 joined" in found["events"]


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param({"name": "bsp", "share": False}, marks=SLOW),
        pytest.param({"name": "average", "every": 3}, marks=SLOW),
        pytest.param({"name": "diloco", "every": 3, "outer_momentum": 0.0}, marks=SLOW),
        {"name": "easgd", "every": 2},
        pytest.param({"name": "downpour"}, marks=SLOW),
        pytest.param({"name": "gossip", "probability": 0.5}, marks=SLOW),
    ],
    ids=lambda rule: rule["name"],
)
def test_ranks_join_and_leave_by_every_rule(run, rule):
    share = {"exchange": {"share": False}} if rule["name"] == "bsp" else {}
    rule = {key: value for key, value in rule.items() if key != "share"}
    requests = [ask(4, "join", 1), ask(20, "leave", ranks=[0])]
    found = run(
        2, rule=rule, requests=requests, epochs=6, optimizer={"name": "sgd", "lr": 0.003}, **share
    )
    assert found["left"] == 2
    assert found["samples"] == [SAMPLES] * 6
    assert found["losses"][-1] < found["losses"][0]
    assert "0 ranks lost, 1 left, 1 joined" in found["events"]


def test_a_run_that_is_not_elastic_refuses(paceline, tmp_path):
    done = paceline("join", tmp_path)
    assert done.returncode == 2
    assert "start one with --elastic" in done.stderr
