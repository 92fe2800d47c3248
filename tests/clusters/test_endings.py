"""How runs over several hosts end when something goes wrong on one of them."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusters.cluster import Cluster, wait_for

SAVED, HOST_LOST = 75, 68
RANK = re.compile(r"-m paceline train mnist ")
LONG = ("train", "mnist", "--threads", "1", "--epochs", "200", "--progress", "plain")
"""It does not end by itself while a test lasts."""


class Run:
    """A training that goes on until somebody ends it, with its output in a file."""

    def __init__(self, cluster: Cluster, name: str, *words: str, host: int = 0) -> None:
        self.cluster, self.place = cluster, cluster.folder / name
        self.place.mkdir()
        self.log = self.place / "log"
        with self.log.open("w") as log:
            argv = ["paceline", *words, "--run-dir", "run"]
            self.process = cluster.start(argv, host, cwd=self.place, stdout=log, stderr=log)

    def wait_for_steps(self) -> None:
        events = self.place / "run" / "events" / "rank-0000.jsonl"
        wait_for("the first step", lambda: has_steps(events), timeout_s=90)

    def end(self, timeout_s: float) -> tuple[int, float]:
        """Its exit code, and how long it took."""
        began = time.monotonic()
        code = self.process.wait(timeout_s)
        return code, time.monotonic() - began

    @property
    def job(self) -> str:
        """The number that the scheduler gave it."""
        log = next((self.place / "run").glob("job-*.log"))
        return log.name.removeprefix("job-").partition(".")[0]

    def check_nothing_is_left(self, hosts: range) -> None:
        def left() -> list[str]:
            lines = [line for host in hosts for line in self.cluster.processes(host).values()]
            return [line for line in lines if "paceline" in line or "prte" in line]

        wait_for("the processes of the run to end", lambda: not left(), timeout_s=20)
        for host in hosts:
            memory = self.cluster.shared_memory(host)
            assert not [name for name in memory if name.startswith("paceline")]


def has_steps(events: Path) -> bool:
    return events.exists() and '"step"' in events.read_text(errors="replace")


@contextmanager
def running(cluster: Cluster, name: str, *words: str, host: int = 0) -> Iterator[Run]:
    run = Run(cluster, name, *words, host=host)
    try:
        run.wait_for_steps()
        yield run
    finally:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait()


def find_rank(cluster: Cluster, host: int) -> int:
    ranks = [pid for pid, line in cluster.processes(host).items() if RANK.search(line)]
    assert len(ranks) == 1
    return ranks[0]


@pytest.fixture(params=[0, 2], ids=["from_a_host", "from_elsewhere"])
def remote(request: pytest.FixtureRequest, ssh_hosts: Cluster) -> tuple[Cluster, int]:
    """ssh hosts, and the host that the launcher is on: one with a rank, or another."""
    return ssh_hosts, request.param


ON_TWO = ("--hosts", "host1:1,host2:1")


@pytest.mark.timeout(150)
def test_a_rank_killed_on_another_host_is_named(remote: tuple[Cluster, int]):
    cluster, host = remote
    with running(cluster, f"killed-{host}", *LONG, *ON_TWO, host=host) as run:
        os.kill(find_rank(cluster, 1), signal.SIGKILL)
        code, seconds = run.end(30)
        said = run.log.read_text()
        assert code not in (0, SAVED)
        assert seconds < 10
        assert re.search(
            r"paceline: (rank 1 \(host2\) was killed by signal 9|a rank on host host2)", said
        )
        assert "MPI_ERRORS_ARE_FATAL" not in said
        run.check_nothing_is_left(range(3))


@pytest.mark.timeout(150)
def test_a_signal_to_the_launcher_saves_on_all_hosts(remote: tuple[Cluster, int]):
    cluster, host = remote
    with running(cluster, f"saved-{host}", *LONG, *ON_TWO, host=host) as run:
        launcher = [p for p, line in cluster.processes(host).items() if "bin/paceline" in line]
        os.kill(launcher[0], signal.SIGTERM)
        code, _ = run.end(60)
        assert code == SAVED
        assert "saved; go on with: paceline train --resume" in run.log.read_text()
        run.check_nothing_is_left(range(3))


@pytest.mark.timeout(150)
def test_a_launcher_that_is_killed_leaves_nothing_on_any_host(ssh_hosts: Cluster):
    with running(ssh_hosts, "launcher", *LONG, *ON_TWO, host=2) as run:
        launcher = [p for p, line in ssh_hosts.processes(2).items() if "bin/paceline" in line]
        os.kill(launcher[0], signal.SIGKILL)
        run.end(30)
        run.check_nothing_is_left(range(3))


@pytest.mark.timeout(150)
def test_an_exception_on_another_host_ends_all(ssh_hosts: Cluster):
    place = ssh_hosts.folder / "exception"
    place.mkdir()
    (place / "fails.py").write_text(
        "import paceline, numpy as np\n"
        "world = paceline.init()\n"
        "world.all_reduce(np.ones(3))\n"
        "if world.rank == 1:\n    raise RuntimeError('no more')\n"
        "world.barrier()\n"
    )
    done = ssh_hosts.run(["paceline", "run", *ON_TWO, "--", "fails.py"], cwd=place)
    assert done.returncode == 1
    assert "RuntimeError: no more" in done.stderr
    assert "paceline: RuntimeError on rank 1 (host2); all ranks were ended" in done.stderr


@pytest.mark.timeout(180)
def test_a_host_without_power_ends_the_run_and_is_named(ssh_hosts: Cluster):
    with running(ssh_hosts, "power", *LONG, *ON_TWO) as run:
        ssh_hosts.kill_host(1)
        try:
            code, seconds = run.end(60)
            assert code == HOST_LOST
            assert seconds < 30
            assert "paceline: host host2 was lost" in run.log.read_text()
            run.check_nothing_is_left(range(0, 3, 2))
        finally:
            ssh_hosts.revive(1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scheduler", ["slurm", "grid_engine"])
def test_a_lost_node_ends_the_job_which_goes_on_from_its_checkpoint(
    request: pytest.FixtureRequest, scheduler: str
):
    cluster = request.getfixturevalue(scheduler)
    name = {"slurm": "slurm", "grid_engine": "sge"}[scheduler]
    words = ("submit", name, "--nodes", "2", "--time", "20m", "--wait", "--")
    with running(cluster, f"lost-{name}", *words, *LONG, "--checkpoint-every", "20") as run:
        saves = run.place / "run" / "checkpoints"
        wait_for("a checkpoint", lambda: saves.exists() and any(saves.glob("step-*")), 60)
        victim = other_node(cluster)
        cluster.kill_host(victim)
        began = time.monotonic()
        try:
            lost = f"paceline: host {cluster.names[victim]} was lost"
            wait_for("the loss to be told", lambda: lost in run.log.read_text(), 60)
            assert time.monotonic() - began < 30
        finally:
            cluster.revive(victim)
        wait_for("the queue", lambda: "back into the queue" in run.log.read_text(), 30)

        def goes_on() -> bool:
            if name == "slurm":  # else it rests in the queue for two minutes
                update = ("scontrol", "update", f"JobId={run.job}", "StartTime=now")
                cluster.run(update)
            return "resuming" in run.log.read_text()

        wait_for("it to go on", goes_on, 90)
        cluster.tell(*(("scancel", run.job) if name == "slurm" else ("qdel", run.job)))
        run.end(60)


def other_node(cluster: Cluster) -> int:
    """The node that mpirun is not on, but a daemon of it."""
    lines = {n: [line.split()[0] for line in cluster.processes(n).values()] for n in (1, 2)}
    found = [n for n in (1, 2) if any(word.endswith("bin/prted") for word in lines[n])]
    assert len(found) == 1
    return found[0]
