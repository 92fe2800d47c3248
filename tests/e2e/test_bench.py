"""`paceline bench`: ranks, peers and figures, for real.

What is refused before anything is measured is in tests/unit/cli.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from support.commands import PACELINE, started

from paceline.errors import LaunchError
from paceline.tools.bench.harness import run_ranks

MNIST_PARAMETERS = 16 * 26 + 32 * 401 + 128 * 513 + 10 * 129
"""Weights and biases of the built-in network: two convolutions, two dense layers."""

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")


@pytest.fixture
def program(tmp_path):
    """A file with a function of ranks; gives what `run_ranks` calls it."""

    def write(body):
        path = tmp_path / "of_ranks.py"
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        path.write_text(f"import os, sys, time\n\n\ndef work(world, settings):\n{lines}")
        return f"{path}:work"

    return write


def check_report(text, command):
    """What stands above and below the figures."""
    assert text.splitlines()[0].split()[:3] == ["case", "unit", "ours"]
    assert f"Linux {os.uname().release}" in text or sys.platform != "linux"
    assert "versions: paceline " in text
    assert "MPI v" in text
    assert f"command: paceline bench {command}\n" in text


def test_a_table_is_printed_and_rows_and_a_plot_are_written(paceline, tmp_path):
    """With the one peer that loads no torch."""
    words = (
        *("allreduce", "--quick", "-n", "2", "--against", "memcpy", "--rounds", "1"),
        *("--json", "rows.json", "--plot", "a.svg"),
    )
    done = paceline("bench", *words)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["case"] for row in rows] == ["1 KB, 2 ranks", "64 KB, 2 ranks", "1 MB, 2 ranks"]
    for row in rows:
        assert (row["bench"], row["unit"]) == ("allreduce", "us")
        assert list(row["peers"]) == ["memcpy"]
        assert min(row["ours"], row["peers"]["memcpy"]) > 0
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    check_report(done.stdout, " ".join(words))
    assert [line[:12] for line in done.stdout.splitlines()[1:4]] == [
        "1 KB, 2 rank",
        "64 KB, 2 ran",
        "1 MB, 2 rank",
    ]
    assert "one round" in done.stdout
    assert "1 MB: ours" in done.stderr, "progress while it runs"


@pytest.mark.slow
def test_allreduce_runs_beside_all_its_peers(paceline, tmp_path):
    done = paceline("bench", "allreduce", "--quick", "-n", "2", "--json", "rows.json")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    for row in rows:
        assert list(row["peers"]) == ["mpi", "gloo", "memcpy"]
        assert min(row["ours"], *row["peers"].values()) > 0
    assert rows[0]["peers"]["memcpy"] < rows[0]["peers"]["gloo"], "a thousand times less"
    assert done.stdout.splitlines()[0].split()[:4] == ["case", "unit", "ours", "mpi"]
    assert "best of 2 rounds" in done.stdout


@pytest.mark.slow
def test_several_numbers_of_ranks_are_measured_in_turn(paceline, tmp_path):
    done = paceline(
        *("bench", "allreduce", "--quick", "-n", "2", "3", "--against", "memcpy"),
        *("--json", "rows.json", "--rounds", "1"),
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {tuple(row["peers"]) for row in rows} == {("memcpy",)}
    assert [row["case"] for row in rows][::3] == ["1 KB, 2 ranks", "1 KB, 3 ranks"]


@pytest.mark.slow
def test_ddp_runs_on_both_backends_in_turn(paceline, tmp_path):
    done = paceline("bench", "ddp", "--quick", "--networks", "cnn", "--json", "rows.json")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    sums = ["all_reduce, 1 KB, 2 ranks", "all_reduce, 1 MB, 2 ranks"]
    assert [row["case"] for row in rows] == [*sums, "cnn, 2 ranks"]
    assert [list(row["peers"]) for row in rows] == [["gloo"], ["gloo"], ["limit", "gloo"]]
    assert all(row["unit"] == "ms" and row["ours"] > 0 for row in rows)
    assert rows[2]["ours"] > rows[0]["ours"], "a step takes far longer than a small sum"


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_of_ours_holds_parameters_and_optimizer_state_once(paceline, tmp_path):
    done = paceline("bench", "memory", "--quick", "-n", "3", "--json", "rows.json", timeout_s=250)
    assert done.returncode == 0, done.stderr
    held, after, before = json.loads((tmp_path / "rows.json").read_text())
    copy = 2 * 4 * MNIST_PARAMETERS / 2**20  # parameters and momenta
    assert (held["case"], held["unit"]) == ("mnist, 3 ranks, parameters + optimizer state", "MB")
    assert held["ours"] == pytest.approx(copy)
    assert held["peers"] == {"ddp-gloo": pytest.approx(3 * copy)}
    assert after["case"] == "mnist, 3 ranks, resident after a step"
    assert before["case"] == "mnist, 3 ranks, resident before a step, with gradients"
    assert min(after["ours"], before["ours"]) > 0.9 * copy


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rounds_of_memory_are_jobs_of_their_own(paceline):
    done = paceline("bench", "memory", "--quick", "-n", "1", "--rounds", "2", timeout_s=250)
    assert done.returncode == 0, done.stderr
    contestants = [line.split(", ")[-1] for line in done.stderr.splitlines()]
    assert contestants == ["ours", "ddp-gloo"] * 2
    assert "best of 2 rounds" in done.stdout


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_alexnet_on_four_ranks_needs_less_than_half_of_the_memory(paceline, tmp_path):
    done = paceline("bench", "memory", "-n", "4", "--json", "rows.json", timeout_s=500)
    assert done.returncode == 0, done.stderr
    held, after, before = json.loads((tmp_path / "rows.json").read_text())
    assert held["ours"] <= 0.4 * held["peers"]["ddp-gloo"]
    assert held["ours"] == pytest.approx(2 * 4 * 61_100_840 / 2**20, rel=0.01)
    assert after["ours"] <= 0.5 * after["peers"]["ddp-gloo"]
    assert before["ours"] < before["peers"]["ddp-gloo"]


@needs_proc
@pytest.mark.slow
def test_an_interrupt_ends_the_ranks_and_says_so(tmp_path):
    words = ("bench", "allreduce", "-n", "2", "--against", "memcpy")  # gloo would load torch
    with started([PACELINE, *words], tmp_path) as job:
        while "1 KB: ours" not in job.stderr.readline():
            assert job.poll() is None
        ranks = [pid for pid in _children(job.pid) if pid != job.pid]
        assert len(ranks) >= 3, "mpirun and two ranks"
        job.send_signal(signal.SIGINT)
        _, errors = job.communicate(timeout=90)
    assert job.returncode == 130
    assert errors.endswith("paceline: interrupted\n")
    wait_until_dead(ranks)


def wait_until_dead(pids, limit_s=60):
    """The command has ended them; init may take its time to take note."""
    end = time.monotonic() + limit_s
    while any(map(_lives, pids)):
        assert time.monotonic() < end, "ranks have outlived the command"
        time.sleep(0.02)


def _children(pid):
    """The process and all that descend from it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += _children(int(child))
    return found


def _lives(pid):
    """Whether it runs; one that has ended may wait for init to take note."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ranks_get_the_settings_and_rank_0_answers(program):
    name = program("return [world.size, world.allgather_values(world.rank), settings]")
    assert run_ranks(name, 2, {"a": [1, None]}) == [2, [0, 1], {"a": [1, None]}]


def test_one_rank_runs_without_mpi(program):
    name = program("return [world.size, 'mpi4py.MPI' in sys.modules, os.getpid()]")
    size, with_mpi, pid = run_ranks(name, 1, {})
    assert (size, with_mpi) == (1, False)
    assert pid != os.getpid()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_threads_asked_for_win_over_the_shell_for_that_call(program, ranks, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    name = program("return [os.environ.get(f'{n}_NUM_THREADS') for n in ('OMP', 'MKL')]")
    assert run_ranks(name, ranks, {}, threads=2) == ["2", "2"]
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in os.environ
    assert run_ranks(name, ranks, {})[0] == "3"


@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_fails_ends_all_with_an_error_and_its_message(program, ranks, capfd):
    name = program(
        "if world.rank == world.size - 1: raise RuntimeError('no luck')\nworld.barrier()"
    )
    with pytest.raises(LaunchError, match=r"of_ranks\.py:work ended with exit code 1"):
        run_ranks(name, ranks, {})
    assert capfd.readouterr().err.count("RuntimeError: no luck") == 1


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_hangs_is_ended_and_shown_where(program, ranks, capfd):
    name = program("if world.rank == 0: time.sleep(3600)\nworld.barrier()")
    with pytest.raises(LaunchError, match="ended with exit code 1"):
        run_ranks(name, ranks, {}, timeout_s=10)  # a busy machine takes a while to come so far
    errors = capfd.readouterr().err
    assert "Timeout (0:00:10)!" in errors
    assert "of_ranks.py" in errors
