"""Ranks are lost, and the run goes on: under real MPI that outlives its ranks (ULFM)."""

import json
import re

import pytest
from support.launching import KIND
from support.ranks import TESTS

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(KIND != "openmpi", reason="only Open MPI outlives its ranks"),
]
SAMPLES, EPOCHS = 250, 2


@pytest.fixture
def elastic(paceline, tmp_path):
    """`elastic(4, faults=[...], rule="bsp")`: what the ranks that are left say of the run."""

    def run(ranks, *, code=0, elastic=True, **settings):
        program = TESTS / "mpi" / "programs" / "elastic.py"
        given = {"epochs": EPOCHS, "run_dir": str(tmp_path / "run"), **settings}
        words = ["run", *(["--elastic"] if elastic else []), "-n", ranks, "--", program]
        done = paceline(*words, json.dumps(given), timeout_s=120)
        assert done.returncode == code, done.stderr
        found = json.loads(done.stdout.splitlines()[-1]) if code == 0 else {}
        if elastic and code == 0 and settings.get("resume") is None:
            checked = paceline("events", "check", given["run_dir"])
            assert checked.returncode == 0, checked.stdout
        return {**found, "stdout": done.stdout, "stderr": done.stderr}

    return run


def is_whole(found, epochs=EPOCHS):
    """Every sample once in each epoch, and callbacks saw one run."""
    calls = [f"{what} {epoch + 1}" for epoch in range(epochs) for what in ("begin", "end")]
    assert found["samples"] == [SAMPLES] * epochs
    assert found["calls"] == ["train", *calls]
    assert found["steps"] == list(range(1, len(found["steps"]) + 1))
    assert found["losses"][-1] < found["losses"][0]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "faults",
    [["step=6,at=moving"], pytest.param(["step=6,at=after", "step=7,at=before"], marks=SLOW)],
    ids=["moving", "between"],
)
def test_a_run_that_shrank_is_one_that_began_there_with_fewer_ranks(elastic, tmp_path, faults):
    """Bit for bit. A rank that is killed while the ranks move their common parameters has its part
    of the step finished by the others."""
    folder = str(tmp_path / "stopped")
    elastic(3, code=75, elastic=False, stop_after=5, run_dir=folder)
    expected = elastic(2, elastic=False, resume=folder, run_dir=None)
    for fault in faults:
        run_dir = str(tmp_path / fault)
        found = elastic(3, faults=[f"sigkill:rank=1,{fault}"], check_replicas=1, run_dir=run_dir)
        assert found["sizes"] == [3, 2]
        is_whole(found)
        assert found["parameters"] == expected["parameters"], fault
        assert found["val_losses"] == expected["val_losses"]


MOMENTS = [
    "sigkill:rank=5,step=1",
    "sigkill:rank=0,step=4,at=moving",
    "sigkill:rank=2,step=4",
    "sigkill:rank=1,step=9,at=validation",
    "sigkill:rank=3,step=20,at=saving",
]


@pytest.mark.parametrize("share", [True, pytest.param(False, marks=SLOW)])
def test_ranks_are_lost_at_every_moment(elastic, share):
    """At the first step; the leading one and another in the same step; in the validation; in a
    checkpoint. One rank is left in the end."""
    settings = {"exchange": {"share": share}, "checkpoint_every": "epoch", "epochs": 3}
    found = elastic(6, faults=MOMENTS, check_replicas=1, **settings)
    assert found["left"] == 1
    is_whole(found, epochs=3)


def test_a_rank_is_lost_while_the_others_recover_and_one_at_the_end(elastic):
    faults = ["step=3,rank=1", "step=2,rank=0,at=recovery", "step=6,rank=2,at=end"]
    found = elastic(4, faults=[f"sigkill:{fault}" for fault in faults])
    assert found["sizes"] == [4, 2]
    assert found["left"] == 1
    is_whole(found)


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param({"name": "average", "start_after": 2}, marks=SLOW),
        pytest.param({"name": "diloco", "outer_momentum": 0.5}, marks=SLOW),
    ],
    ids=["average", "diloco"],
)
def test_rules_that_merge_weights(elastic, rule):
    """Ranks are lost between two exchanges: what they have done since the first is done again. In
    step 6 all came together, but only to save."""
    faults = ["sigkill:rank=0,step=6", "sigkill:rank=2,step=10,at=before"]
    found = elastic(4, faults=faults, rule={"every": 4, **rule}, checkpoint_every=3)
    assert found["sizes"] == [4, 3, 2]
    is_whole(found)


@pytest.mark.parametrize(
    "rule",
    [
        {"name": "easgd", "every": 2},
        pytest.param({"name": "downpour"}, marks=SLOW),
        pytest.param({"name": "gossip", "probability": 0.5}, marks=SLOW),
    ],
    ids=["easgd", "downpour", "gossip"],
)
def test_workers_that_do_not_wait_for_each_other(elastic, rule):
    """The leading one is lost, too, after its first epochs, and in the end one goes on alone."""
    faults = ["sigkill:rank=2,step=4", "sigkill:rank=0,step=30", "sigkill:rank=1,step=40"]
    found = elastic(4, faults=faults, rule=rule, epochs=12, optimizer={"name": "sgd", "lr": 0.01})
    assert found["left"] == 1
    assert found["samples"] == [SAMPLES] * 12
    assert found["losses"][-1] < found["losses"][0]


EASGD, DOWNPOUR = {"name": "easgd", "every": 2}, {"name": "downpour"}
MOMENTUM = {"name": "momentum", "lr": 0.3, "momentum": 0.3}


@pytest.mark.parametrize(
    ("rule", "where", "faults", "said"),
    [
        pytest.param(
            EASGD,
            {"exchange": {"servers": 1}},
            ["rank=3,step=10,at=serving", "rank=1,step=30"],
            "the centre is restored from rank",
            id="server-then-worker",
            marks=SLOW,
        ),
        pytest.param(
            {**DOWNPOUR, "server_optimizer": MOMENTUM},
            {"exchange": {"servers": 2}},
            ["rank=3,step=10,at=serving", "rank=0,step=14,at=pushing"],
            "its optimizer begins anew",
            id="one-of-two-servers-then-leader",
            marks=SLOW,
        ),
        pytest.param(
            EASGD,
            {"ranks_per_node": 2},
            ["rank=1,step=10,at=serving", "rank=0,step=24"],
            "piece 1 of 2 of the centre is restored",
            id="a-node",
            marks=SLOW,
        ),
        pytest.param(
            DOWNPOUR,
            {"ranks_per_node": 1},
            ["rank=0,step=12,at=pushing", "rank=2,step=12"],
            "of the centre is restored from rank",
            id="hosted-by-workers",
            marks=SLOW,
        ),
        pytest.param(
            {"name": "gossip", "probability": 0.5},
            {"ranks_per_node": 2},
            ["rank=0,step=15", "rank=3,step=40"],
            "",
            id="gossip-on-nodes",
            marks=SLOW,
        ),
    ],
)
def test_what_lost_servers_held_is_restored(elastic, rule, where, faults, said):
    """Servers and those who work are lost, the keeper of the ledger among them: in the middle of
    exchanges, and between them. A server has had its tenth request before a worker is so far."""
    settings = {"epochs": 8, "optimizer": {"name": "sgd", "lr": 0.003}, "progress": "plain"}
    faults = [f"sigkill:{fault}" for fault in faults]
    found = elastic(4, faults=faults, rule=rule, **where, **settings)
    assert found["left"] < 4
    assert said in found["stderr"] + found["stdout"]
    assert found["samples"] == [SAMPLES] * 8
    assert found["losses"][-1] < found["losses"][0]


@pytest.mark.parametrize(
    ("ranks", "faults"),
    [
        pytest.param(4, ["sigstop:rank=2,step=4", "hang:rank=0,step=9"], marks=SLOW),
        pytest.param(3, ["sigstop:rank=0,step=4"], marks=SLOW),
        pytest.param(3, ["sigstop:rank=1,step=4", "sigkill:rank=2,step=9"], marks=SLOW),
    ],
    ids=["of others and of the judge", "rank 1 judges", "then one is killed"],
)
def test_a_rank_that_hangs_is_killed_and_the_others_go_on(elastic, ranks, faults):
    """By another, since it may be stopped; the leading one judges, and is judged."""
    limits = {"stall_warning_s": 2, "stall_timeout_s": 6}
    found = elastic(ranks, faults=faults, check_replicas=1, **limits)
    assert found["left"] == ranks - len(faults)
    is_whole(found)
    for rank, _ in re.findall(r"(?:sigstop|hang):rank=(\d),step=(\d)", str(faults)):
        said = rf"nothing has moved for .* wait.* for rank {rank} .*; rank {rank} is killed"
        assert re.search(said, found["stderr"])


@SLOW
def test_below_the_least_number_of_ranks_it_saves_and_can_go_on(elastic, tmp_path):
    folder = str(tmp_path / "run")
    settings = {"run_dir": folder, "min_ranks": 3}
    found = elastic(3, code=75, faults=["sigkill:rank=0,step=6"], **settings)
    assert "2 ranks are left, and elastic.min is 3" in found["stderr"]
    assert elastic(2, resume=folder, run_dir=None)["samples"] == [SAMPLES] * EPOCHS


def test_a_rank_that_fails_before_it_has_joined_ends_the_others(paceline, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        "import os, sys\n"
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n"
        "    sys.exit(3)\n"
        "import paceline\n"
        "paceline.init().barrier()\n"
    )
    done = paceline("run", "--elastic", "-n", 3, "--", script, timeout_s=120)
    assert done.returncode == 3
    assert done.stderr.count("exit with 3 on rank 1") == 1
