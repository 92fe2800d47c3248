"""doctor on real clusters: green on each, and red with the right remedy for faults made on purpose.

Every fault is made on one host, looked at, and taken back.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.clusters.cluster import HANG_S, HOME, Cluster

PACELINE = str(Path(sys.executable).parent / "paceline")
HOSTS = ("--hosts", "host1,host2")
IN_SLURM = ("salloc", "--quiet", "-N2", "-n4", "--ntasks-per-node=2")
IN_GRID_ENGINE = ("qrsh", "-now", "n", "-cwd", "-V", "-pe", "mpi", "4")
HERE, THERE = 0, 1
FAKE_TIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


class Told:
    """What doctor said, as JSON, and how it ended."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        assert lines, f"doctor said: {done.stdout}{done.stderr}"
        self.code, self.all = done.returncode, json.loads(lines[-1])
        self.failed = {one["name"]: one for one in self.all["checks"] if one["verdict"] == "fail"}

    def fails(self, name: str, detail: str, remedy: str) -> None:
        """It is red, for this reason and no other, and says what helps."""
        assert list(self.failed) == [name], self.failed
        assert detail in self.failed[name]["detail"]
        assert remedy in self.failed[name]["remedy"]
        assert (self.code, self.all["runs"]) == (1, False)


def doctor(
    cluster: Cluster,
    *options: str,
    by: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Told:
    argv = [*by, PACELINE, "doctor", "--json", *options]
    return Told(cluster.run(argv, env=env))


@contextmanager
def mounted(cluster: Cluster, *mount: str | Path) -> Iterator[None]:
    """Something else in a place of the second host, as long as the block lasts."""
    cluster.tell("mount", *mount, host=THERE)
    try:
        yield
    finally:
        cluster.tell("umount", mount[-1], host=THERE)


def is_green(told: Told, nodes: Sequence[str]) -> None:
    assert told.failed == {}
    assert (told.code, told.all["runs"]) == (0, True)
    assert {rank["node"] for rank in told.all["world"]["ranks"]} == {*nodes}
    for pair in told.all["world"]["pairs"]:
        assert pair["small_s"] > 0
        assert pair["bytes_per_s"] > 0
    count = len(nodes)
    assert len(told.all["world"]["pairs"]) == count * (count - 1) // 2


def test_ssh_hosts_are_green(ssh_hosts: Cluster) -> None:
    is_green(doctor(ssh_hosts, "--hosts", "host1,host2,host3"), ssh_hosts.names)
    ssh_hosts.check_nothing_is_left()
    assert [ssh_hosts.shared_memory(host) for host in range(3)] == [[], [], []]


def test_a_slurm_job_is_green(slurm: Cluster) -> None:
    is_green(doctor(slurm, "--in-job", by=IN_SLURM), slurm.names[1:])


def test_a_job_of_grid_engine_is_green(grid_engine: Cluster) -> None:
    is_green(doctor(grid_engine, "--in-job", by=IN_GRID_ENGINE), grid_engine.names[1:])


def test_the_page_is_for_people(ssh_hosts: Cluster) -> None:
    done = ssh_hosts.run([PACELINE, "doctor", "--quick", *HOSTS])
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("No problem found")
    assert "ok    start by ssh     host2 answered" in lines
    assert "\x1b" not in done.stdout


def test_outside_of_a_job_there_is_no_job(slurm: Cluster) -> None:
    done = slurm.run([PACELINE, "doctor", "--in-job"])
    assert done.returncode == 1
    assert "this is no job of Slurm" in done.stderr


def test_a_name_that_leads_to_loopback(ssh_hosts: Cluster) -> None:
    names = ssh_hosts.new_folder("names") / "hosts"
    known = ssh_hosts.tell("grep", "-v", "host2", "/etc/hosts")
    names.write_text(f"127.0.0.1 localhost host2\n{known}")
    with mounted(ssh_hosts, "--bind", names, "/etc/hosts"):
        told = doctor(ssh_hosts, "--quick", *HOSTS)
    own = ssh_hosts.addresses[THERE]
    told.fails("host name", "host2 is 127.0.0.1: a loopback address", f"Write `{own} host2`")


def install_mpich(folder: Path) -> Path:
    """Its library, where the package index can be reached."""
    argv = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--prefix", folder, "mpich"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"no second MPI could be installed within {HANG_S:g} s")
    library = folder / "lib/libmpi.so.12"
    if not library.exists():
        pytest.skip(f"no second MPI could be installed: {done.stderr.strip()[-200:]}")
    return library


def test_two_mpis(ssh_hosts: Cluster) -> None:
    library = install_mpich(ssh_hosts.new_folder("mpich"))
    told = doctor(ssh_hosts, env={"MPI4PY_LIBMPI": str(library)})
    assert {*told.failed} == {"mpirun", "world"}
    assert "two MPIs: Open MPI" in told.failed["mpirun"]["detail"]
    assert f"at {library} (MPI4PY_LIBMPI is {library})" in told.failed["mpirun"]["detail"]
    assert "unset MPI4PY_LIBMPI" in told.failed["mpirun"]["remedy"]
    assert "PMI" in told.failed["world"]["detail"]  # what MPICH says where it expects its own
    assert told.code == 1


def test_a_missing_host_key(ssh_hosts: Cluster) -> None:
    known = ssh_hosts.home / ".ssh/known_hosts"
    before = known.read_text()
    lines = before.splitlines(keepends=True)
    known.write_text("".join(line for line in lines if not line.startswith("host2")))
    try:
        told = doctor(ssh_hosts, *HOSTS)
    finally:
        known.write_text(before)
    told.fails("start by ssh", "the host key of host2 is not known", "`ssh-keyscan host2 >> ")
    assert told.all["world"] is None


def test_too_few_slots_on_hosts(ssh_hosts: Cluster) -> None:
    told = doctor(ssh_hosts, "--quick", "--hosts", "host1:2,host2:1", "-n", "4")
    told.fails("slots", "-n 4 ranks were requested, but the hosts take 3", "Use -n 3 or less")


def test_too_few_slots_in_a_slurm_job(slurm: Cluster) -> None:
    told = doctor(slurm, "--quick", "-n", "5", by=IN_SLURM)
    told.fails("slots", "granted 4 (node1:2, node2:2)", "ask for more when you submit (--ntasks)")


def test_too_few_slots_in_a_job_of_grid_engine(grid_engine: Cluster) -> None:
    told = doctor(grid_engine, "--quick", "-n", "5", by=IN_GRID_ENGINE)
    told.fails("slots", "-n 5 ranks were requested, but the job was granted 4", "(-pe NAME)")


def test_srun_without_pmi(slurm: Cluster) -> None:
    told = doctor(slurm, "--quick", by=("srun", "--mpi=none", "-N2", "-n2"))
    detail = "srun started 2 tasks without the PMI that openmpi needs"
    told.fails("srun", detail, "`paceline run -n 2` (or train) from the job's script")


def test_one_core_for_many_threads(ssh_hosts: Cluster) -> None:
    first = ("taskset", "-c", "0")
    told = doctor(ssh_hosts, "--quick", by=first, env={"OMP_NUM_THREADS": "8"})
    detail = "OMP_NUM_THREADS is 8, but a rank may use 1 core"
    told.fails("threads", detail, "Unset OMP_NUM_THREADS, or give --threads 1")


def test_little_shared_memory(ssh_hosts: Cluster) -> None:
    with mounted(ssh_hosts, "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"):
        told = doctor(ssh_hosts, "--quick", *HOSTS)
    told.fails("shared memory", "1.0 MB free of 1.0 MB in /dev/shm", "remount,size=50% /dev/shm")
    assert told.failed["shared memory"]["hosts"] == ["host2"]


@contextmanager
def all_ports_but_that_of_ssh_blocked(cluster: Cluster, host: int) -> Iterator[None]:
    rule = ("INPUT", "-p", "tcp", "--syn", "!", "--dport", "22", "-j", "DROP")
    cluster.tell("iptables", "--append", *rule, host=host)
    try:
        yield
    finally:
        cluster.tell("iptables", "--delete", *rule, host=host)


@pytest.mark.skipif(shutil.which("iptables") is None, reason="iptables is not installed")
@pytest.mark.parametrize(
    ("host", "way"), [(HERE, "from host2 to host1"), (THERE, "from host1 to host2")]
)
def test_blocked_ports(ssh_hosts: Cluster, host: int, way: str) -> None:
    with all_ports_but_that_of_ssh_blocked(ssh_hosts, host):
        told = doctor(ssh_hosts, *HOSTS)
    told.fails("ports", f"connections are blocked {way}", "through the firewall")


@pytest.mark.skipif(shutil.which("iptables") is None, reason="iptables is not installed")
def test_a_world_that_never_forms_is_given_up(ssh_hosts: Cluster) -> None:
    options = ["-n", "2", "--hosts", "host1:1,host2:1"]
    code = (
        "from paceline.tools.doctor.world import *; "
        f"trial = run_trial({options}, timeout_s=8); "
        "print(judge_trial(trial, 2, several=True)[0])"
    )
    with all_ports_but_that_of_ssh_blocked(ssh_hosts, THERE):
        done = ssh_hosts.run([sys.executable, "-c", code])
    assert "verdict='fail'" in done.stdout
    assert "no world was formed and measured within 8 s" in done.stdout
    assert "let all TCP between them through the firewall" in done.stdout
    assert ssh_hosts.shared_memory(HERE) == []


def test_no_python_at_that_path(ssh_hosts: Cluster) -> None:
    empty = ssh_hosts.new_folder("empty")
    with mounted(ssh_hosts, "--bind", empty, sys.prefix):
        told = doctor(ssh_hosts, *HOSTS)
    told.fails("start by ssh", f"host2 has no Python at {sys.prefix}", "same path")


def test_a_python_that_differs(ssh_hosts: Cluster) -> None:
    other = Path("/usr/bin/python{}.{}".format(*sys.version_info))
    ours = Path(sys.executable).resolve()
    asked = [other, "-c", "import platform; print(platform.python_version())"]
    theirs = subprocess.run(asked, capture_output=True, text=True).stdout if other.exists() else ""
    own = ".".join(map(str, sys.version_info[:3]))
    if theirs.strip() in ("", own):
        pytest.skip(f"there is no other Python than {own} on this machine, at {other}")
    with mounted(ssh_hosts, "--bind", other, ours):
        told = doctor(ssh_hosts, *HOSTS)
    detail = f"Python differs: {own} on host1; {theirs.strip()} on host2"
    told.fails("Python", detail, "Install the same version on all hosts")


@pytest.mark.skipif(not FAKE_TIME.exists(), reason="libfaketime is not installed")
def test_a_clock_that_is_off_by_an_hour(ssh_hosts: Cluster) -> None:
    keys = ssh_hosts.home / ".ssh/authorized_keys"
    later = ssh_hosts.new_folder("clock") / "authorized_keys"
    variables = f"env LD_PRELOAD={FAKE_TIME} FAKETIME=+1h"
    command = f'command="{variables} sh -c \\"$SSH_ORIGINAL_COMMAND\\""'
    later.write_text(f"{command} {keys.read_text()}")
    with mounted(ssh_hosts, "--bind", later, f"{HOME}/.ssh/authorized_keys"):
        told = doctor(ssh_hosts, *HOSTS)
    told.fails("clock", "the clock of host2 is 3", "NTP")


def test_a_loose_environment_of_grid_engine_needs_ssh(grid_engine: Cluster) -> None:
    loose = [word if word != "mpi" else "mpi_loose" for word in IN_GRID_ENGINE]
    told = doctor(grid_engine, by=loose)
    told.fails("start by ssh", "no ssh server listens there", "control_slaves TRUE")
