import pytest

from paceline.errors import LaunchError
from paceline.launch.environment import Environment, check_world, detect
from paceline.launch.world import choose_patience

OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}
STEP = BATCH | {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (OPEN_MPI, Environment("openmpi", 3, 4, 1, 2, True)),
        (HYDRA, Environment("hydra", 2, 4, 0, 2, True)),
        (STEP, Environment("slurm-step", 3, 4, 1, None, True)),
        (BATCH, Environment("slurm-batch", None, 4, None, None, False)),
        ({}, Environment("none", None, 1, None, None, False)),
    ],
)
def test_each_launcher_is_recognised_by_its_variables(env, expected):
    assert detect(env) == expected


def test_mpirun_inside_slurm_is_mpirun():
    assert detect(STEP | OPEN_MPI).kind == "openmpi"
    assert detect(STEP | HYDRA).kind == "hydra"


def test_a_shell_under_srun_may_start_ranks():
    assert not detect(STEP | {"SLURM_NTASKS": "1"}).launched


@pytest.mark.parametrize("step", ["4294967290", "4294967291"])
def test_the_shell_of_salloc_is_no_task_of_a_step(step):
    assert detect(STEP | {"SLURM_STEP_ID": step}).kind == "slurm-batch"


def test_the_step_counts_its_own_tasks():
    assert detect(STEP | {"SLURM_STEP_NUM_TASKS": "2"}).size == 2


def test_asked_ranks_win_over_the_scheduler():
    assert detect(BATCH | {"PACELINE_RANKS": "1"}).size == 1
    assert detect(OPEN_MPI | {"PACELINE_RANKS": "2"}).size == 2


def test_a_rank_of_our_launcher_is_launched_even_by_an_unknown_mpirun():
    assert detect({"PACELINE_LAUNCHER": "1", "PACELINE_RANKS": "2"}).launched


def test_a_variable_that_is_no_number_is_named():
    with pytest.raises(LaunchError, match=r"PMI_SIZE is 'many', expected a whole number"):
        detect({"PMI_SIZE": "many"})


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (STEP, ["srun started 4 tasks", "world of 1", "train alone", "--mpi=pmix", "-n 4"]),
        (BATCH, ["Slurm allocated 4 tasks", "batch script itself", "paceline run -n 4"]),
        (OPEN_MPI, ["mpirun started 4 tasks", "MPI.Get_library_version()", "different MPIs"]),
        (HYDRA, ["Hydra", "MPI.Get_library_version()"]),
        ({"PACELINE_RANKS": "4"}, ["PACELINE_RANKS asks for 4", "paceline run -n 4"]),
    ],
)
def test_a_world_of_one_among_many_tasks_is_refused_with_the_remedy(env, words):
    with pytest.raises(LaunchError) as caught:
        check_world(detect(env), 1)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("env", [OPEN_MPI, HYDRA, STEP, BATCH])
def test_the_world_that_was_started_is_accepted(env):
    assert check_world(detect(env), 4) is None


def test_only_a_world_of_one_is_said_to_train_alone():
    with pytest.raises(LaunchError) as caught:
        check_world(detect(STEP), 2)
    assert "world of 2." in str(caught.value)


def test_one_rank_in_a_batch_script_is_right_when_asked_for():
    assert check_world(detect(BATCH | {"PACELINE_RANKS": "1"}), 1) is None


@pytest.mark.parametrize(
    ("kind", "ranks", "cores", "asleep"),
    [("hydra", 4, 2, True), ("hydra", 2, 2, False), ("slurm-step", 3, 2, True),
     ("openmpi", 4, 2, False)],
)  # fmt: skip
def test_ranks_that_outnumber_the_cores_wait_asleep(kind, ranks, cores, asleep):
    """Open MPI's mpirun lets them yield."""
    environment = Environment(kind, 0, ranks, 0, ranks, launched=True)
    assert (choose_patience(environment, ranks, cores) is not None) == asleep
