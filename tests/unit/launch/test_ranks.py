import argparse
import contextlib
import functools
import os
import sys
from dataclasses import replace

import pytest

from paceline.cli.rank_options import add_rank_options, read_rank_options
from paceline.cluster.hosts import Host
from paceline.cluster.identity import NODE_STATE
from paceline.launch import ranks
from paceline.launch.job import Mpirun, Placement
from paceline.launch.placement import RankPlan
from paceline.launch.restarts import Replacements, run_on_what_is_left
from paceline.launch.supervise import JobResult
from paceline.runtime.job_dir import AGAIN, ELASTIC

HEAD = (sys.executable, "-m", "paceline")


@pytest.fixture
def started(monkeypatch):
    """The jobs that were started, with the number of the restart; all of them fail."""
    jobs = []

    def start(kind, job, restart, launcher=None):
        jobs.append((kind, job.command, restart))
        return JobResult(1)

    monkeypatch.setattr(ranks, "find_mpirun", lambda: Mpirun("mpirun", "openmpi"))
    monkeypatch.setattr(ranks, "outlives_ranks", lambda launcher: True)
    monkeypatch.setattr(ranks, "start_ranks", functools.partial(start, "ranks"))
    monkeypatch.setattr(ranks, "start_alone", functools.partial(start, "alone"))
    patient = functools.partial(ranks.run_with_restarts, sleep=lambda seconds: None)
    monkeypatch.setattr(ranks, "run_with_restarts", patient)
    yield jobs
    for name in ("PACELINE_RANKS", "PACELINE_RESTART"):
        os.environ.pop(name, None)


def parse(*words: str) -> ranks.RankRequest:
    parser = argparse.ArgumentParser()
    add_rank_options(parser)
    return read_rank_options(parser.parse_args(words))


def never() -> int:
    raise AssertionError("this process is no rank")


@pytest.mark.parametrize(("number", "kind"), [("1", "alone"), ("2", "ranks")])
def test_a_restart_takes_the_command_for_it(started, number, kind):
    request = parse("-n", number, "--restarts", "2")
    resumes = iter((["train", "--resume", "a"], ["train", "--resume", "b"]))
    assert ranks.start_or_join(request, ["train"], never, again=lambda: next(resumes)) == 1
    assert started == [
        (kind, (*HEAD, "train"), 0),
        (kind, (*HEAD, "train", "--resume", "a"), 1),
        (kind, (*HEAD, "train", "--resume", "b"), 2),
    ]


HOSTS = Placement((Host("a", 2), Host("b", 2), Host("c", 1)), "ssh")
LOST_B, DIED = JobResult(68, lost_host="b"), JobResult(137, died=True)


@pytest.mark.parametrize(
    ("ends", "placement", "least", "plans"),
    [
        ([JobResult(0)], HOSTS, 1, [5]),
        ([LOST_B, JobResult(0)], HOSTS, 1, [5, 3]),
        ([LOST_B, JobResult(68, lost_host="c"), JobResult(0)], HOSTS, 1, [5, 3, 2]),
        ([LOST_B], HOSTS, 4, [5]),
        ([JobResult(68, lost_host="elsewhere")], HOSTS, 1, [5]),
        ([JobResult(1)], HOSTS, 1, [5]),
        ([JobResult(137, signalled=True, died=True)], HOSTS, 1, [5]),
        ([DIED, DIED, JobResult(0)], Placement(), 1, [5, 4, 3]),
        ([DIED] * 5, Placement(), 1, [5, 4, 3, 2, 1]),
        ([DIED] * 2, HOSTS, 4, [5, 4]),
    ],
)
def test_what_is_left_starts_again(ends, placement, least, plans):
    started, codes = [], iter(ends)

    def run(number, plan):
        started.append(plan)
        assert number == len(started) - 1
        assert not plan.placement.hosts or sum(h.slots for h in plan.placement.hosts) == plan.ranks
        return next(codes)

    ended = run_on_what_is_left(run, RankPlan(5, 1, placement), least)
    assert [plan.ranks for plan in started] == plans
    last = ends[len(plans) - 1]
    is_lost = not last.signalled and (last.died or last.lost_host is not None)
    assert ended == replace(last, too_few=is_lost)


def test_others_take_the_place_of_lost_ranks_as_long_as_they_get_on(tmp_path):
    """Three starts in a row that save nothing new are enough: then there is one rank less."""
    started, saves = [], tmp_path / "checkpoints"
    saved_by_start = {0: "step-00000010", 2: "step-00000020"}

    def run(number, plan):
        started.append(plan.ranks)
        if number in saved_by_start:
            (saves / saved_by_start[number]).mkdir(parents=True)
        return DIED if number < 6 else JobResult(0)

    replacements = Replacements(tmp_path)
    run_on_what_is_left(run, RankPlan(3, 1, Placement()), 1, tmp_path, replacements)
    assert started == [3, 3, 3, 3, 3, 3, 2]


def test_a_lost_host_is_not_used_again():
    first, second = [], iter([LOST_B, JobResult(0)])

    def run(number, plan):
        first.append([host.name for host in plan.placement.hosts])
        return next(second)

    run_on_what_is_left(run, RankPlan(5, 1, HOSTS), 1)
    assert first == [["a", "b", "c"], ["a", "c"]]


def test_an_elastic_run_is_restarted_after_other_failures(started):
    request = replace(parse("-n", "2", "--restarts", "1"), elastic=True)
    ranks.start_or_join(request, ["train"], never, again=lambda: ["train", "--resume", "auto"])
    assert started == [
        ("ranks", (*HEAD, "train"), 0),
        ("ranks", (*HEAD, "train", "--resume", "auto"), 1),
    ]


@pytest.mark.parametrize("fails", [True, False])
def test_what_ranks_are_told_that_start_again_from_node_memory(
    started, monkeypatch, capsys, tmp_path, fails
):
    """What node memory has is copied to the disk after a failure."""
    jobs, copied = [], []
    monkeypatch.setattr(ranks, "outlives_ranks", lambda launcher: False)
    monkeypatch.setattr(ranks, "node_state", lambda: contextlib.nullcontext(tmp_path))
    ends = JobResult(1 if fails else 0)
    monkeypatch.setattr(ranks, "start_ranks", lambda job, *_: jobs.append(job) or ends)
    request = replace(parse("-n", "2"), elastic=True)
    more = {"again": lambda: ["train"], "rescue": lambda memory: copied.append(memory)}
    ranks.start_or_join(request, ["train"], never, **more)
    assert jobs[0].variables == {ELASTIC: AGAIN, NODE_STATE: str(tmp_path)}
    assert copied == ([tmp_path] if fails else [])
    assert "start again from node memory" in capsys.readouterr().err


def test_without_a_command_for_it_a_restart_takes_the_same(started):
    ranks.start_or_join(parse("-n", "2", "--restarts", "1"), ["train"], never)
    assert started == [("ranks", (*HEAD, "train"), restart) for restart in (0, 1)]


def test_one_rank_without_restarts_is_this_process(started):
    assert ranks.start_or_join(parse("-n", "1"), ["train"], lambda: 7) == 7
    assert started == []


@pytest.mark.parametrize(("taken", "starts"), [(0, 1), (1, 2), (9, 3)])
def test_a_port_that_is_taken_is_another_start_but_no_restart(
    started, monkeypatch, capsys, taken, starts
):
    told = []

    def start(job, restart, launcher):
        told.append((job.variables["MASTER_PORT"], restart))
        return JobResult(1, port_taken=len(told) <= taken)

    monkeypatch.setattr(ranks, "start_ranks", start)
    assert ranks.start_or_join(parse("-n", "2"), ["run"], never, for_torch=True) == 1
    assert len({port for port, _ in told}) == len(told) == starts
    assert {restart for _, restart in told} == {0}
    assert capsys.readouterr().err.count("with another port") == starts - 1


def test_only_scripts_for_torch_are_told_where_to_meet(started, monkeypatch):
    jobs = []
    monkeypatch.setattr(ranks, "start_ranks", lambda job, *_: jobs.append(job) or JobResult(0))
    ranks.start_or_join(parse("-n", "2"), ["train"], never)
    assert jobs[0].variables == {}


@pytest.mark.parametrize("for_torch", [False, True])
def test_gpus_are_left_to_scripts_for_torch(monkeypatch, for_torch):
    """They choose theirs by LOCAL_RANK, so they must see all; `paceline.init` assigns them."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    ranks.start_or_join(parse(), ["run"], lambda: 0, for_torch=for_torch)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ("4,5" if for_torch else "5")


@pytest.mark.parametrize("asked", [(), ("-n", "1")])
def test_the_rank_that_was_started_alone_starts_no_other(started, monkeypatch, asked):
    monkeypatch.setenv("PACELINE_RANKS", "1")
    monkeypatch.setenv("PACELINE_RESTART", "0")
    assert ranks.start_or_join(parse(*asked, "--restarts", "2"), ["train"], lambda: 7) == 7
    assert started == []
