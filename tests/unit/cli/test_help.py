"""Every subcommand has a help."""

import pytest


@pytest.mark.parametrize(
    "name",
    ["train", "run", "init", "data", "doctor", "export", "bench", "tune", "submit", "mpi-learn"],
)
def test_every_subcommand_explains_itself(command, name):
    done = command(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: paceline {name} ")
    assert "  -h, --help" in done.stdout


def test_an_unknown_subcommand_is_refused_with_those_there_are(command):
    done = command("trian", "mnist")
    assert done.returncode == 2
    assert "invalid choice: 'trian'" in done.stderr
    assert "'train'" in done.stderr
