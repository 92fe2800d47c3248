"""`paceline run`: what it says of wrong words."""

import pytest


@pytest.fixture
def script(tmp_path):
    (tmp_path / "program.py").write_text("raise AssertionError('nothing is to be run')\n")
    return "program.py"


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_missing_script_is_named(command, ranks):
    done = command("run", "-n", ranks, "--", "nowhere.py")
    assert done.returncode == 1
    assert done.stderr == "LaunchError: the script nowhere.py does not exist\n"


def test_a_folder_is_no_script(command, tmp_path):
    (tmp_path / "folder.py").mkdir()
    done = command("run", "-n", "2", "--", "folder.py")
    assert (done.returncode, done.stderr) == (
        1,
        "LaunchError: the script folder.py is not a file\n",
    )


def test_a_module_needs_a_name(command):
    done = command("run", "-n", "1", "--", "-m")
    assert done.returncode == 1
    assert "-m needs the name of a module" in done.stderr


@pytest.mark.parametrize(
    ("option", "number", "expected"),
    [
        ("-n", "0", "from 1 to "),
        ("--threads", "0", "from 1 to "),
        ("--restarts", "-1", "of 0 or more"),
    ],
)
def test_numbers_that_are_too_small_are_refused(command, script, option, number, expected):
    done = command("run", option, number, "--", script)
    assert done.returncode == 2
    assert f"argument {option}" in done.stderr
    assert f"{number!r} is not a number {expected}" in done.stderr


def test_another_number_of_ranks_than_mpirun_has_started_is_refused(command, script):
    ranks = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    done = command("run", "-n", "3", "--", script, **ranks)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "LaunchError: you gave -n 3, but openmpi has started 2 ranks already"
    )
