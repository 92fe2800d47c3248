"""Ranks are lost in a loop of one's own, and it goes on: under real MPI that outlives its ranks."""

import json
from collections import defaultdict

import numpy as np
import pytest
import torch
from mpi.programs import elastic_loop
from support.launching import KIND
from support.loop_logs import Logs, kept_of_the_lost
from support.ranks import TESTS

from paceline.rules import BSP

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(KIND != "openmpi", reason="only Open MPI outlives its ranks"),
]
SLOW = pytest.mark.slow
SAMPLES, EPOCHS = 100, 3


@pytest.fixture
def loop(paceline, tmp_path):
    """`loop(4, "bsp", ["rank=1,step=3"])`: what the ranks wrote; those are killed."""

    def run(ranks, rule, faults=(), **settings):
        folder = tmp_path / f"logs-{len([*tmp_path.iterdir()])}"
        folder.mkdir()
        given = {
            "rule": rule, "folder": str(folder), "faults": [f"sigkill:{text}" for text in faults],
            "samples": SAMPLES, "epochs": EPOCHS, **settings,
        }  # fmt: skip
        program = TESTS / "mpi" / "programs" / "elastic_loop.py"
        words = ["run", "--elastic", "-n", ranks, "--", program, json.dumps(given)]
        done = paceline(*words, timeout_s=120)
        assert done.returncode == 0, done.stderr
        lost = [int(text.split("rank=")[1].split(",")[0]) for text in faults]
        logs = Logs(folder, lost, done.stderr)
        assert len(logs.left) == ranks - len(faults)
        assert {entry["size"] for entry in logs.ends} <= {len(logs.left), ranks}
        assert len({entry["end"] for entry in logs.ends}) == 1
        return logs

    return run


@pytest.fixture
def one_thread():
    """As the ranks have: with more, sums may have other last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def replay(logs, epochs=EPOCHS):
    """The same steps in one process, by the same rule: the hash of the model in the end."""
    steps = defaultdict(dict)
    for rank in [*logs.left, *logs.lost]:
        entries = logs.of[rank]
        for epoch in range(epochs):
            own = [entry for entry in entries if entry.get("epoch") == epoch]
            last = None
            for entry in own:
                if "done" in entry:
                    last = entry["world"], entry["rounds"]
                    steps[epoch, *last][rank] = entry["samples"]
            if rank in logs.lost and own and "begun" in own[-1] and last is not None:
                # If it counted, the others came out of it in time, or in the next world, before the
                # first step there.
                finished = (epoch, last[0], last[1] + 1)
                if finished not in steps:
                    finished = (epoch, last[0] + 1, 0)
                if kept_of_the_lost(logs, epoch, SAMPLES)[rank] == len(logs.batches(rank, epoch)):
                    steps[finished][rank] = own[-1]["samples"]
    model, optimizer = elastic_loop.build()
    inputs, targets = map(torch.from_numpy, elastic_loop.make_data(SAMPLES))
    rule = BSP()
    for key in sorted(steps):
        rows, weights = [], []
        for _, batch in sorted(steps[key].items()):
            optimizer.zero_grad()
            elastic_loop.mean_loss(model, inputs[batch], targets[batch]).backward()
            flat = torch.cat([p.grad.ravel() for p in model.parameters()])
            rows.append(flat.numpy())
            weights.append(len(batch) / 5)
        mean = np.empty_like(rows[0])
        rule.accumulate(rows, weights, out=mean)
        rule.merge(mean, sum(weights), out=mean)
        at = 0
        for parameter in model.parameters():
            size = parameter.numel()
            parameter.grad = torch.from_numpy(mean[at : at + size].copy()).view_as(parameter)
            at += size
        optimizer.step()
    return elastic_loop.hash_of(model)


@pytest.mark.parametrize(
    ("moment", "counts"),
    [
        pytest.param("before", False, marks=SLOW),
        ("moving", True),
        pytest.param("after", True, marks=SLOW),
    ],
)
def test_the_step_is_finished_by_those_who_are_left(loop, one_thread, moment, counts):
    """Bit for bit what its samples give, in a world that is smaller from there on: with the lost
    rank's, if all had its gradients, and else without, and they are dealt again."""
    logs = loop(3, "bsp", [f"rank=1,step=4,at={moment}"])
    assert kept_of_the_lost(logs, 0, SAMPLES) == {1: 3 + counts}
    assert logs.taken(1, 0) == 3
    assert [kept_of_the_lost(logs, epoch, SAMPLES)[1] for epoch in (1, 2)] == [0, 0]
    assert {entry["end"] for entry in logs.ends} == {replay(logs)}
    assert "rank 1 (" in logs.stderr
    assert "going on after step 3 with 2 ranks" in logs.stderr or counts


MOMENTS = [
    "rank=4,step=1,at=before",
    "rank=0,step=3,at=moving",
    "rank=2,step=6,at=before",
    "rank=3,step=6,at=before",
]


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_norm": 0.5, "checks": True},
        pytest.param({"exchange": {"share": False}, "validates": True}, marks=SLOW),
        pytest.param({"hooked": True, "weight": [1.0 + at % 3 for at in range(100)]}, marks=SLOW),
        pytest.param({"cost": [1.0 + at % 7 for at in range(100)]}, marks=SLOW),
    ],
    ids=["clipped", "not shared", "hooked and weighted", "by cost"],
)
def test_ranks_are_lost_one_after_the_other(loop, settings):
    """The first step's, the leading one, two at once; one goes on alone, and to the end."""
    logs = loop(5, "bsp", MOMENTS, **settings)
    for epoch in range(EPOCHS):
        kept_of_the_lost(logs, epoch, SAMPLES)
    assert logs.ends[0]["size"] == 1


@SLOW
@pytest.mark.parametrize("share", [True, False])
def test_ranks_are_lost_at_the_end_of_an_epoch_and_of_the_loop(loop, share):
    """100 samples are 5 steps of 4 ranks; the second epoch has 7 of 3, the last 10 of 2."""
    faults = ["rank=1,step=5,at=before", "rank=0,step=13,at=after", "rank=2,step=1,at=end"]
    logs = loop(4, "bsp", faults, exchange={"share": share})
    for epoch in range(EPOCHS):
        kept_of_the_lost(logs, epoch, SAMPLES)
    assert [len({*logs.batches(1, epoch)[0]}) for epoch in (0,)] == [5]


@SLOW
def test_a_rank_is_lost_while_the_others_recover(loop):
    logs = loop(4, "bsp", ["rank=1,step=3,at=before", "rank=0,step=2,at=recovery"])
    for epoch in range(EPOCHS):
        kept_of_the_lost(logs, epoch, SAMPLES)
    assert [entry["size"] for entry in logs.ends] == [2, 2]


@pytest.mark.parametrize(
    "rule",
    [
        {"name": "average", "every": 3},
        pytest.param({"name": "average", "every": 4, "start_after": 3}, marks=SLOW),
        pytest.param({"name": "diloco", "every": 3, "outer_momentum": 0.5}, marks=SLOW),
    ],
    ids=["average", "local SGD", "diloco"],
)
def test_rules_that_merge_weights(loop, rule):
    """What a lost rank did since the last exchange is done again by the others."""
    faults = ["rank=1,step=2,at=before", "rank=0,step=5,at=after", "rank=3,step=11,at=before"]
    logs = loop(4, rule, faults)
    for epoch in range(EPOCHS):
        kept_of_the_lost(logs, epoch, SAMPLES)
    assert logs.ends[0]["size"] == 1


@SLOW
def test_steps_of_several_batches_and_epochs_that_are_broken_off(loop):
    """A batch is in hand until the step that it goes into is taken."""
    faults = ["rank=1,step=2,at=before"]
    logs = loop(3, "bsp", faults, accumulate=2, samples=SAMPLES, epochs=1)
    assert kept_of_the_lost(logs, 0, SAMPLES) == {1: 1}
    logs = loop(3, "bsp", ["rank=1,step=4,at=before"], breaks=3)
    used = [sum(map(len, logs.batches(rank, 2))) for rank in logs.left]
    assert used == [15, 15]


SAYS = """
import torch, paceline
from paceline.errors import ConfigError

def train(rule, elastic=None, inner=False, batches=None):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        with paceline.keep_pace(model, optimizer, rule, elastic=elastic):
            if inner:
                train("bsp")
            for _ in batches or range(3):
                optimizer.zero_grad()
                model(torch.ones(1)).sum().backward()
                optimizer.step()
    except ConfigError as error:
        if paceline.init().rank == 0:
            print(rule, elastic, inner, error)

train("bsp", True)
if paceline.init().elastic:
    train("easgd")
    train("easgd", True)
    train("bsp", inner=True)
    train("bsp", True, inner=True)
    data = [torch.ones(1)] * 8
    train("average", batches=paceline.deal(data, 4))
    train("diloco", batches=paceline.shard(data, 2, cost="learned"))
"""


def test_what_cannot_be_had_is_said_at_the_start(paceline, tmp_path):
    script = tmp_path / "says.py"
    script.write_text(SAYS)
    plain = paceline("run", "-n", 2, "--", script, timeout_s=120)
    assert plain.returncode == 0, plain.stderr
    said = "it was not started with `paceline run --elastic` by an mpirun of Open MPI 5"
    assert plain.stderr.count(said) == 1
    assert "--restarts" in plain.stderr
    done = paceline("run", "--elastic", "-n", 2, "--", script, timeout_s=120)
    assert done.returncode == 0, done.stderr
    says, nested = "a rank that is lost ends this loop: ", "keep_pace blocks are nested"
    assert done.stderr.count(f"{says}rule easgd is asynchronous") == 1
    assert done.stderr.count(f"{says}{nested}") == 1
    errors = done.stdout.splitlines()
    assert len(errors) == 4
    assert errors[0].startswith("easgd True False elastic is True, and rule easgd is asynchronous")
    assert errors[1].startswith(f"bsp None False elastic is True, and {nested}")
    assert errors[2].startswith("average None False paceline.deal cannot tell")
    assert errors[3].startswith('diloco None False cost "learned"')
