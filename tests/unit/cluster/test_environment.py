import pytest

from paceline.cluster.detect import ADVICE, Environment, check_world, detect
from paceline.errors import LaunchError
from paceline.runtime.resources import choose_poll_interval

OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}
STEP = BATCH | {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
INTEL = HYDRA | {"I_MPI_HYDRA_TOPOLIB": "hwloc"}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "7",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
}
JSRUN = {
    "JSM_NAMESPACE_RANK": "3",
    "JSM_NAMESPACE_SIZE": "4",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "2",
}
SGE = {"JOB_ID": "7", "PE": "mpi", "PE_HOSTFILE": "/nowhere/pe_hostfile", "NSLOTS": "4"}
LSF = {"LSB_JOBID": "7", "LSB_DJOB_NUMPROC": "4", "LSB_MCPU_HOSTS": "n1 2 n2 2"}
PBS = {"PBS_JOBID": "7.head", "PBS_NODEFILE": "/nowhere/7.head", "PBS_NP": "4"}
RANKS = {
    "openmpi": OPEN_MPI,
    "hydra": HYDRA,
    "intel": INTEL,
    "torchrun": TORCHRUN,
    "slurm-step": STEP,
    "lsf-step": JSRUN,
}
SCRIPTS = {"slurm-batch": BATCH, "sge-batch": SGE, "lsf-batch": LSF, "pbs-batch": PBS}
ALL = RANKS | SCRIPTS


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (OPEN_MPI, Environment("openmpi", 3, 4, 1, 2, True)),
        (HYDRA, Environment("hydra", 2, 4, 0, 2, True)),
        (INTEL, Environment("intel", 2, 4, 0, 2, True)),
        (TORCHRUN, Environment("torchrun", 3, 4, 1, 2, True)),
        (JSRUN, Environment("lsf-step", 3, 4, 1, 2, True)),
        (STEP, Environment("slurm-step", 3, 4, 1, None, True)),
        (BATCH, Environment("slurm-batch", None, 4, None, None, False)),
        (SGE, Environment("sge-batch", None, 4, None, None, False)),
        (LSF, Environment("lsf-batch", None, 4, None, None, False)),
        (PBS, Environment("pbs-batch", None, 4, None, None, False)),
        ({}, Environment("none", None, 1, None, None, False)),
    ],
)
def test_each_launcher_is_recognised_by_its_variables(env, expected):
    assert detect(env) == expected


def test_mpirun_inside_slurm_is_mpirun():
    assert detect(STEP | OPEN_MPI).kind == "openmpi"
    assert detect(STEP | HYDRA).kind == "hydra"


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("rank", ["openmpi", "hydra", "intel", "torchrun"])
def test_a_rank_is_a_rank_inside_every_allocation(rank, script):
    assert detect(SCRIPTS[script] | RANKS[rank]) == detect(RANKS[rank])


def test_a_task_is_a_task_inside_an_allocation_of_its_scheduler():
    assert detect(BATCH | STEP).kind == "slurm-step"
    assert detect(LSF | JSRUN).kind == "lsf-step"


def test_slurm_that_plays_pbs_is_slurm():
    assert detect(PBS | BATCH).kind == "slurm-batch"


def test_ranks_of_spectrum_mpi_under_jsrun_are_those_of_open_mpi():
    assert detect(JSRUN | OPEN_MPI).kind == "openmpi"


@pytest.mark.parametrize("outside", [OPEN_MPI, HYDRA, STEP])
def test_torchrun_under_another_launcher_is_torchrun(outside):
    assert detect(outside | TORCHRUN) == detect(TORCHRUN)


@pytest.mark.parametrize(
    "name", sorted(TORCHRUN.keys() - {"RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
)
def test_a_script_that_sets_variables_of_torchrun_is_not_torchrun(name):
    env = {key: value for key, value in TORCHRUN.items() if key != name}
    assert detect(env).kind == "none"


def test_the_only_process_of_torchrun_may_start_ranks():
    alone = TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}
    assert not detect(alone).launched
    assert detect(alone | OPEN_MPI).rank == 3


def test_settings_of_intel_mpi_do_not_make_a_rank_of_mpich_one_of_intel():
    assert detect(HYDRA | {"I_MPI_ROOT": "/opt/intel", "I_MPI_FABRICS": "shm"}).kind == "hydra"


@pytest.mark.parametrize("pmi", [{"PMI_RANK": "3", "PMI_SIZE": "4"}, {"PMIX_RANK": "3"}])
def test_a_task_of_srun_is_one_by_whatever_pmi(pmi):
    """Its local rank is Slurm's: Hydra, which tells its own, did not start it."""
    assert detect(STEP | pmi) == Environment("slurm-step", 3, 4, 1, None, True)


def test_a_shell_under_srun_with_pmi_may_start_ranks():
    pmi = {"PMI_RANK": "0", "PMI_SIZE": "1"}
    assert not detect(STEP | pmi | {"SLURM_NTASKS": "1"}).launched


@pytest.mark.parametrize(
    ("counts", "node", "expected"),
    [
        ("2(x2),1", "0", 2),
        ("2(x2),1", "1", 2),
        ("2(x2),1", "2", 1),
        ("5", "0", 5),
        ("2", "1", None),
    ],
)
def test_a_step_tells_the_tasks_of_this_node(counts, node, expected):
    env = STEP | {"SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_NODEID": node}
    assert detect(env).local_size == expected


@pytest.mark.parametrize("name", ["JOB_ID", "PE_HOSTFILE", "NSLOTS"])
def test_grid_engine_is_known_by_all_of_its_variables(name):
    assert detect({key: value for key, value in SGE.items() if key != name}).kind == "none"


@pytest.mark.parametrize(
    ("told", "expected"),
    [({"LSB_MCPU_HOSTS": "n1 2 n2 3"}, 5), ({}, 1)],
)
def test_lsf_that_does_not_tell_the_sum_tells_the_slots_of_hosts(told, expected):
    assert detect({"LSB_JOBID": "7"} | told).size == expected


def test_pbs_pro_tells_the_ranks_by_the_lines_of_a_file(tmp_path):
    """NCPUS there are processors of one host, for ranks or for threads."""
    file = tmp_path / "nodes"
    file.write_text("n1\nn1\nn2\n")
    env = {"PBS_JOBID": "7", "PBS_NODEFILE": str(file), "NCPUS": "8"}
    assert detect(env).size == 3
    file.unlink()
    assert detect(env).size == 8


def test_a_shell_under_srun_may_start_ranks():
    assert not detect(STEP | {"SLURM_NTASKS": "1"}).launched


@pytest.mark.parametrize("step", ["4294967290", "4294967291"])
def test_the_shell_of_salloc_is_no_task_of_a_step(step):
    assert detect(STEP | {"SLURM_STEP_ID": step}).kind == "slurm-batch"


def test_the_step_counts_its_own_tasks():
    assert detect(STEP | {"SLURM_STEP_NUM_TASKS": "2"}).size == 2


def test_asked_ranks_win_over_the_scheduler():
    assert [detect(env | {"PACELINE_RANKS": "1"}).size for env in SCRIPTS.values()] == [1] * 4
    assert detect(OPEN_MPI | {"PACELINE_RANKS": "2"}).size == 2


def test_a_rank_of_our_launcher_is_launched_even_by_an_unknown_mpirun():
    assert detect({"PACELINE_LAUNCHER": "1", "PACELINE_RANKS": "2"}).launched


def test_a_variable_that_is_no_number_is_named():
    with pytest.raises(LaunchError, match=r"PMI_SIZE is 'many', expected a whole number"):
        detect({"PMI_SIZE": "many"})


@pytest.mark.parametrize(
    ("env", "name", "value"),
    [
        (OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK", "x"),
        (HYDRA, "PMI_SIZE", "0"),
        (INTEL, "MPI_LOCALNRANKS", "2.5"),
        (TORCHRUN, "WORLD_SIZE", ""),
        (STEP, "SLURM_PROCID", "-1"),
        (STEP | {"SLURM_NODEID": "0"}, "SLURM_STEP_TASKS_PER_NODE", "2(x"),
        (BATCH, "SLURM_NTASKS", "all"),
        (SGE, "NSLOTS", "4 slots"),
        (JSRUN, "JSM_NAMESPACE_SIZE", "x"),
        (LSF, "LSB_DJOB_NUMPROC", "x"),
        ({"LSB_JOBID": "7"}, "LSB_MCPU_HOSTS", "n1 n2"),
        (PBS, "PBS_NP", "x"),
        ({}, "PACELINE_RANKS", "0"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named_with_its_value(env, name, value):
    with pytest.raises(LaunchError) as caught:
        detect(env | {name: value})
    assert f"{name} is {value!r}, expected" in str(caught.value)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (STEP, ["srun started 4 tasks", "world of 1", "train alone", "--mpi=pmix", "-n 4"]),
        (BATCH, ["Slurm allocated 4 tasks", "batch script itself", "paceline run -n 4"]),
        (OPEN_MPI, ["mpirun started 4 tasks", "MPI.Get_library_version()", "different MPIs"]),
        (HYDRA, ["Hydra", "MPI.Get_library_version()"]),
        (INTEL, ["Intel MPI's mpirun started 4 tasks", "different MPIs"]),
        (TORCHRUN, ["torchrun started 4 processes", "world of 1", "paceline run -n 4 script.py"]),
        (JSRUN, ["jsrun started 4 tasks", "Spectrum", "paceline run -n 4"]),
        (SGE, ["Grid Engine granted 4 slots", "batch script itself", "-n 4", "`-n 1`"]),
        (LSF, ["LSF granted 4 slots", "batch script itself", "PACELINE_RANKS=1"]),
        (PBS, ["PBS granted 4 ranks", "batch script itself", "paceline run -n 4"]),
        ({"PACELINE_RANKS": "4"}, ["PACELINE_RANKS asks for 4", "paceline run -n 4"]),
    ],
)
def test_a_world_of_one_among_many_tasks_is_refused_with_the_remedy(env, words):
    with pytest.raises(LaunchError) as caught:
        check_world(detect(env), 1)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("kind", ALL)
def test_the_world_that_was_started_is_accepted(kind):
    assert check_world(detect(ALL[kind]), 4) is None


def test_every_kind_that_is_read_has_a_remedy():
    assert ADVICE.keys() == ALL.keys() | {"none"}


def test_only_a_world_of_one_is_said_to_train_alone():
    with pytest.raises(LaunchError) as caught:
        check_world(detect(STEP), 2)
    assert "world of 2." in str(caught.value)


@pytest.mark.parametrize("kind", SCRIPTS)
def test_one_rank_in_a_batch_script_is_right_when_asked_for(kind):
    environment = detect(SCRIPTS[kind] | {"PACELINE_RANKS": "1"})
    assert not environment.launched
    assert check_world(environment, 1) is None


@pytest.mark.parametrize(
    ("kind", "ranks", "cores", "asleep"),
    [("hydra", 4, 2, True), ("hydra", 2, 2, False), ("slurm-step", 3, 2, True),
     ("openmpi", 4, 2, False)],
)  # fmt: skip
def test_ranks_that_outnumber_the_cores_wait_asleep(kind, ranks, cores, asleep):
    """Open MPI's mpirun lets them yield."""
    environment = Environment(kind, 0, ranks, 0, ranks, launched=True)
    assert (choose_poll_interval(environment, ranks, cores) is not None) == asleep
