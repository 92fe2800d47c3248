"""How runs over several hosts end when something goes wrong on one of them."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from support.clusters.cluster import HANG_S, Cluster, wait_for
from support.clusters.clusters import Clusters
from support.clusters.submit_checks import DIGITS, has_steps

SAVED, HOST_LOST = 75, 68
RANK = re.compile(r"-m paceline train ")
LONG = ("train", *DIGITS, "--threads", "1", "--epochs", "100000", "--progress", "plain")
SLOW = {"SLOW_S": "0.02"}
"""It does not end by itself while a test lasts, and leaves the cores to others."""


class Run:
    """A training that goes on until somebody ends it, with its output in a file."""

    def __init__(self, cluster: Cluster, name: str, *words: str, host: int = 0) -> None:
        self.cluster, self.place = cluster, cluster.new_folder(name)
        self.log = self.place / "log"
        with self.log.open("w") as log:
            argv = ["paceline", *words, "--run-dir", "run"]
            self.process = cluster.start(
                argv, host, env=SLOW, cwd=self.place, stdout=log, stderr=log
            )

    def wait_for_steps(self) -> None:
        wait_for("the first step", lambda: has_steps(self.place / "run"))

    def end(self) -> int:
        """Its exit code."""
        return self.process.wait(HANG_S)

    @property
    def job(self) -> str:
        """The number that the scheduler gave it."""
        log = next((self.place / "run").glob("job-*.log"))
        return log.name.removeprefix("job-").partition(".")[0]


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


def find_launcher(cluster: Cluster, host: int) -> int:
    return next(pid for pid, line in cluster.processes(host).items() if "bin/paceline" in line)


@pytest.fixture(params=[0, 2], ids=["from_a_host", "from_elsewhere"])
def remote(request: pytest.FixtureRequest, ssh_hosts: Cluster) -> tuple[Cluster, int]:
    """ssh hosts, and the host that the launcher is on: one with a rank, or another."""
    return ssh_hosts, request.param


ON_TWO = ("--hosts", "host1:1,host2:1")


def test_a_rank_killed_on_another_host_is_named(remote: tuple[Cluster, int]):
    cluster, host = remote
    with running(cluster, "killed", *LONG, *ON_TWO, host=host) as run:
        os.kill(find_rank(cluster, 1), signal.SIGKILL)
        assert run.end() not in (0, SAVED)
        said = run.log.read_text()
        assert re.search(
            r"paceline: (rank 1 \(host2\) was killed by signal 9|a rank on host host2)", said
        )
        for words in ("MPI_ERRORS_ARE_FATAL", "prterun", "unexpectedly disconnected"):
            assert words not in said
        cluster.check_nothing_is_left()


def test_a_signal_to_the_launcher_saves_on_all_hosts(remote: tuple[Cluster, int]):
    cluster, host = remote
    with running(cluster, "saved", *LONG, *ON_TWO, host=host) as run:
        os.kill(find_launcher(cluster, host), signal.SIGTERM)
        assert run.end() == SAVED
        assert "saved; go on with: paceline train --resume" in run.log.read_text()
        cluster.check_nothing_is_left()


def test_a_launcher_that_is_killed_leaves_nothing_on_any_host(ssh_hosts: Cluster):
    with running(ssh_hosts, "launcher", *LONG, *ON_TWO, host=2) as run:
        os.kill(find_launcher(ssh_hosts, 2), signal.SIGKILL)
        run.end()
        ssh_hosts.check_nothing_is_left()


def test_an_exception_on_another_host_ends_all(ssh_hosts: Cluster):
    place = ssh_hosts.new_folder("exception")
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


@pytest.fixture(scope="module")
def losses(clusters: Clusters) -> Iterator[dict[str, Future[None]]]:
    """Runs on all clusters that lose a host at the same time, since it takes 20 s until a host that
    says nothing is given up."""
    with ThreadPoolExecutor() as pool:
        yield {
            "ssh_hosts": pool.submit(lose_a_host, clusters),
            "slurm": pool.submit(lose_a_node, clusters, "slurm"),
            "grid_engine": pool.submit(lose_a_node, clusters, "grid_engine"),
        }


def lose_a_host(clusters: Clusters) -> None:
    with clusters.lend("ssh_hosts") as hosts, running(hosts, "power", *LONG, *ON_TWO) as run:
        hosts.kill_host(1)
        assert run.end() == HOST_LOST
        assert "paceline: host host2 was lost" in run.log.read_text()
        hosts.check_nothing_is_left([0, 2])
        hosts.revive(1)


def lose_a_node(clusters: Clusters, kind: str) -> None:
    name, stop = {"slurm": ("slurm", "scancel"), "grid_engine": ("sge", "qdel")}[kind]
    slow = [word for name, value in SLOW.items() for word in ("--env", f"{name}={value}")]
    submit = ("submit", name, "--nodes", "2", "--time", "20m", *slow, "--wait", "--")
    words = (*submit, *LONG, "--checkpoint-every", "20")
    with clusters.lend(kind) as cluster, running(cluster, "lost", *words) as run:
        saves = run.place / "run" / "checkpoints"
        wait_for("a checkpoint", lambda: saves.exists() and any(saves.glob("step-*")))
        victim = other_node(cluster)
        cluster.kill_host(victim)
        lost = f"paceline: host {cluster.names[victim]} was lost"
        wait_for("the loss to be told", lambda: lost in run.log.read_text())
        cluster.revive(victim)
        wait_for("the queue", lambda: "back into the queue" in run.log.read_text())

        def goes_on() -> bool:
            if kind == "slurm":  # else it rests in the queue for two minutes
                cluster.run(["scontrol", "update", f"JobId={run.job}", "StartTime=now"])
            return "resuming" in run.log.read_text()

        wait_for("it to go on", goes_on)
        cluster.tell(stop, run.job)
        run.end()
        cluster.check_nothing_is_left()


def other_node(cluster: Cluster) -> int:
    """The node that mpirun is not on, but a daemon of it."""
    lines = {n: [line.split()[0] for line in cluster.processes(n).values()] for n in (1, 2)}
    found = [n for n in (1, 2) if any(word.endswith("bin/prted") for word in lines[n])]
    assert len(found) == 1
    return found[0]


def test_a_host_without_power_ends_the_run_and_is_named(losses: dict[str, Future[None]]):
    losses["ssh_hosts"].result()


@pytest.mark.parametrize("scheduler", ["slurm", "grid_engine"])
def test_a_lost_node_ends_the_job_which_goes_on_from_its_checkpoint(
    losses: dict[str, Future[None]], scheduler: str
):
    losses[scheduler].result()
