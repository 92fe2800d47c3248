"""Scripts for torchrun on several hosts: `paceline run` tells ranks where to meet, without MPI."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest
from support.clusters.cluster import AS_ROOT, HANG_S, REPOSITORY, Cluster
from support.clusters.slurm import PMIX

PROGRAMS = REPOSITORY / "tests" / "mpi" / "programs"
SCRIPT = PROGRAMS / "torchrun_script.py"

LISTEN = """
import socket, time
with socket.create_server(("", 0)) as taken:
    print(taken.getsockname()[1], flush=True)
    time.sleep(3600)
"""
DRAW = """
import sys
from paceline.launch import rendezvous
draw, ports = rendezvous.draw_port, [int(sys.argv.pop(1))]
rendezvous.draw_port = lambda: ports.pop() if ports else draw()
from paceline.cli import main
sys.exit(main())
"""


def read(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What the ranks said, in their order."""
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda said: int(said["RANK"]))


def check(said: list[dict[str, Any]], hosts: list[str], address: str) -> None:
    """That ranks on these hosts met at this address, and by nothing but torch itself."""
    assert [one["host"] for one in said] == hosts
    assert [one["RANK"] for one in said] == [str(rank) for rank in range(len(hosts))]
    nodes = list(dict.fromkeys(hosts))
    for one in said:
        assert one["WORLD_SIZE"] == str(len(hosts))
        assert one["LOCAL_WORLD_SIZE"] == str(hosts.count(one["host"]))
        assert one["GROUP_RANK"] == str(nodes.index(one["host"]))
        assert one["GROUP_WORLD_SIZE"] == str(len(nodes))
        assert (one["address"], one["mpi"]) == (address, False)
        assert one["gloo"] not in (None, "", "lo")
    assert len({one["port"] for one in said}) == 1
    assert len({one["loss"] for one in said}) == 1


def test_on_other_hosts_than_ours_with_a_port_that_is_free_there(ssh_hosts: Cluster):
    """The first port that is drawn is taken on the host of rank 0: another is."""
    listener = ssh_hosts.start(["python", "-c", LISTEN], host=1)
    taken = listener.stdout.readline().strip()
    argv = ["python", "-c", DRAW, taken, "run", "--hosts", "host2:1,host3:2", "--", SCRIPT]
    try:
        done = ssh_hosts.run(argv)
    finally:
        end(listener)
    said = read(done)
    check(said, ["host2", "host3", "host3"], ssh_hosts.addresses[1])
    assert f"MASTER_PORT {taken} was chosen, and is not available on host2" in done.stderr
    assert "starting the ranks again, with another port" in done.stderr
    assert said[0]["port"] != taken
    ssh_hosts.check_nothing_is_left()


def test_on_this_host_and_another(ssh_hosts: Cluster):
    argv = ["paceline", "run", "--hosts", "host1:1,host2:1", "--", SCRIPT]
    done = ssh_hosts.run(argv)
    check(read(done), ["host1", "host2"], ssh_hosts.addresses[0])
    assert done.stderr == ""
    failed = ssh_hosts.run([*argv, "fail"])
    assert failed.returncode == 7, failed.stderr
    ssh_hosts.check_nothing_is_left()


def test_a_loopback_address_for_several_hosts_is_refused(ssh_hosts: Cluster):
    argv = ["paceline", "run", "--hosts", "host1:1,host2:1", "--", SCRIPT]
    done = ssh_hosts.run(argv, env={"MASTER_ADDR": "127.0.0.1"})
    assert done.returncode == 1
    assert "MASTER_ADDR is 127.0.0.1" in done.stderr
    assert "host1, host2" in done.stderr


def test_in_a_job_of_slurm(slurm: Cluster):
    """From a login host: rank 0 is on neither side of what the launcher can hold."""
    argv = ["salloc", "-N2", "-n2", "-Q", "paceline", "run", "--", SCRIPT]
    said = read(slurm.run(argv))
    check(said, ["node1", "node2"], slurm.addresses[slurm.names.index("node1")])
    slurm.check_nothing_is_left()


NO_PMIX = pytest.mark.skipif(not PMIX, reason="Slurm's PMIx plugin needs libpmix.so (libpmix-dev)")


@pytest.mark.parametrize(
    "launcher", [pytest.param("srun --mpi=pmix", marks=NO_PMIX), "mpirun -n 2 --map-by node"]
)
def test_under_the_launcher_of_a_user_they_meet_by_mpi(slurm: Cluster, launcher):
    """It has told nobody where to meet; so MPI does."""
    allocated = ("salloc", "-N2", "-n2", "-Q", *launcher.split())
    argv = [*allocated, "paceline", "run", "--", SCRIPT, "short"]
    said = read(slurm.run(argv, env=AS_ROOT))
    assert [(one["host"], one["mpi"]) for one in said] == [("node1", True), ("node2", True)]
    assert [one["LOCAL_RANK"] for one in said] == ["0", "0"]
    assert said[0]["loss"] == said[1]["loss"]


def test_in_a_job_of_grid_engine(grid_engine: Cluster):
    shell = ["qrsh", "-now", "n", "-cwd", "-V", "-pe", "mpi", "4"]
    argv = [*shell, "paceline", "run", "-n", "2", "--", SCRIPT]
    said = read(grid_engine.run(argv, cwd=grid_engine.folder))
    first = said[0]["host"]
    address = grid_engine.addresses[grid_engine.names.index(first)]
    check(said, [first, {"node1": "node2", "node2": "node1"}[first]], address)


def end(process: subprocess.Popen[str]) -> None:
    """End what was started on a host; the door it went through ends with it."""
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=HANG_S)
