"""A run directory belongs to one job, whoever else submits in the same second."""

import re
import stat
import time
from pathlib import Path

import pytest
from support.job_requests import request

from paceline.cli import main
from paceline.cli import submit as submit_command
from paceline.cluster.schedulers import SCHEDULERS
from paceline.cluster.schedulers import submit as handing_in
from paceline.cluster.schedulers.interface import CommandReply
from paceline.cluster.schedulers.submit import submit
from paceline.errors import LaunchError


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(time, "strftime", lambda form: "20260131-154502")
    return tmp_path


@pytest.fixture
def taken(monkeypatch):
    """A scheduler that takes every job; gives the scripts that it got."""
    scripts = []

    def ask(command, directory=None):
        if directory is None:
            return CommandReply(None)
        scripts.append((directory / "job.sh").read_text())
        return CommandReply(0, f"{len(scripts)}\n")

    monkeypatch.setattr(handing_in, "ask_scheduler", ask)
    monkeypatch.setattr(submit_command, "ask_scheduler", ask)
    return scripts


COMMANDS = [("train", "mnist"), ("run", "mine.py")]


@pytest.mark.parametrize("command", COMMANDS)
def test_who_loses_the_race_for_a_directory_takes_another(place, taken, monkeypatch, command):
    (place / "mine.py").touch()
    name = "mnist-bsp" if command[0] == "train" else "mine"
    first = place / "runs" / f"20260131-154502-{name}"
    named = Path.exists

    def exists(path, **_):
        """Somebody else makes the directory just after it was found to be free."""
        found = named(path)
        if path.absolute() == first and not found:
            first.mkdir(parents=True)
            (first / "job.sh").write_text("theirs")
        return found

    monkeypatch.setattr(Path, "exists", exists)
    assert main(["submit", "slurm", "--", *command]) == 0
    assert (first / "job.sh").read_text() == "theirs"
    (script,) = taken
    assert f"run_dir={first}-2\n" in script
    if command[0] == "train":
        assert f"--run-dir {first}-2 " in script


def test_a_run_directory_that_was_given_may_be_there(place, taken):
    (place / "mine").mkdir()
    assert main(["submit", "slurm", "--", "train", "--run-dir", "mine"]) == 0
    assert "job.sh" in [path.name for path in (place / "mine").iterdir()]


@pytest.mark.parametrize("before", [None, 0o644])
def test_the_script_is_for_its_user_alone(place, taken, before):
    script = place / "run" / "job.sh"
    if before is not None:
        script.parent.mkdir()
        script.write_text("old")
        script.chmod(before)
    submit(request(run_dir=place / "run", env=(("TOKEN", "secret"),)), SCHEDULERS["slurm"])
    assert stat.S_IMODE(script.stat().st_mode) == 0o600
    assert "secret" in script.read_text()


@pytest.mark.parametrize("before", [None, "an earlier job's"])
def test_a_refused_job_leaves_the_run_directory_as_it_was(place, before, monkeypatch):
    monkeypatch.setattr(
        handing_in, "ask_scheduler", lambda *_: CommandReply(1, "no such partition")
    )
    script = place / "run" / "job.sh"
    if before is not None:
        script.parent.mkdir()
        script.write_text(before)
    with pytest.raises(LaunchError, match="no such partition"):
        submit(request(run_dir=place / "run"), SCHEDULERS["slurm"])
    assert (script.read_text() if script.exists() else None) == before
    assert script.parent.exists() == (before is not None)


def render(capsys, scheduler, *words):
    code = main(["submit", scheduler, "--dry-run", *words, "--", "train"])
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("scheduler", "directive"),
    [
        ("slurm", "#SBATCH --export=ALL,TOKEN,OTHER"),
        ("sge", "#$ -v TOKEN,OTHER"),
        ("pbs", "#PBS -v TOKEN,OTHER"),
        ("lsf", '#BSUB -env "all"'),
    ],
)
def test_a_variable_without_a_value_is_passed_on_and_its_value_written_nowhere(
    scheduler, directive, monkeypatch, capsys
):
    monkeypatch.setenv("TOKEN", "secret")
    monkeypatch.setenv("OTHER", "secret, too")
    words = ("--env", "TOKEN", "--env", "PLAIN=x", "--env", "OTHER")
    code, out, errors = render(capsys, scheduler, *words)
    assert (code, errors) == (0, "")
    assert directive in out.splitlines()
    assert "export PLAIN=x\n" in out
    assert "secret" not in out
    code, out, _ = render(capsys, scheduler, "--env", "PLAIN=x")
    assert not re.search(r"#SBATCH --export|#\$ -v|#PBS -v|#BSUB -env", out)


def test_a_variable_that_is_not_set_is_refused_now_and_not_in_the_job(capsys):
    code, out, errors = render(capsys, "slurm", "--env", "TOKEN", "--env", "bad-name")
    assert (code, out) == (2, "")
    assert "--env is 'bad-name', expected: NAME or NAME=VALUE" in errors
    code, out, errors = render(capsys, "slurm", "--env", "TOKEN")
    assert (code, out) == (2, "")
    assert "--env TOKEN takes its value from here, and TOKEN is not set: export it" in errors


def test_a_successor_on_pbs_gets_the_variables_too(monkeypatch, capsys):
    monkeypatch.setenv("TOKEN", "secret")
    _, out, _ = render(capsys, "pbs", "--env", "TOKEN")
    assert "qsub -v PACELINE_REQUEUES,TOKEN -W depend" in out
