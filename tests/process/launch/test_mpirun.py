"""The mpirun that is found, and the agent that is written for it, as they run."""

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cluster.hosts import Host
from paceline.launch.job import Job, Mpirun, Placement
from paceline.launch.mpirun import find_mpirun, write_qrsh_script


def fake_mpirun(folder: Path, version: str, name: str = "mpirun") -> str:
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f"#!/bin/sh\necho '{version}'\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("mpirun (Open MPI) 5.0.11", "openmpi"),
        ("HYDRA build details:", "mpich"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", "intel"),
        ("something else", "unknown"),
    ],
)
def test_the_kind_is_read_from_the_version(tmp_path, monkeypatch, version, kind):
    path = fake_mpirun(tmp_path, version)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_mpirun() == Mpirun(path, kind)


def test_the_mpirun_beside_python_comes_before_path(tmp_path, monkeypatch):
    fake_mpirun(tmp_path / "site", "HYDRA")
    own = fake_mpirun(tmp_path / "venv", "(Open MPI)", name="mpiexec")
    monkeypatch.setenv("PATH", str(tmp_path / "site"), prepend=":")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/python"))
    assert find_mpirun() == Mpirun(own, "openmpi")


def on_two_hosts(remote_shell: str) -> Job:
    return Job(
        2, 1, ("python",), Placement((Host("a", 1), Host("b", 1)), remote_shell=remote_shell)
    )


def test_qrsh_starts_daemons_that_are_deaf_to_the_signal_before_the_end(tmp_path):
    job = write_qrsh_script(on_two_hosts("echo qrsh"), tmp_path, Mpirun("mpirun", "openmpi"))
    assert job.placement.remote_shell == "echo qrsh"
    job = write_qrsh_script(on_two_hosts("qrsh -inherit"), tmp_path, Mpirun("mpirun", "openmpi"))
    assert job.placement.remote_shell == f"sh {tmp_path}/remote_shell"
    qrsh = tmp_path / "qrsh"
    qrsh.write_text('#!/bin/sh\nshift 2\nexec sh -c "$*"\n')
    qrsh.chmod(0o755)
    done = subprocess.run(
        [
            "sh",
            str(tmp_path / "remote_shell"),
            "n07",
            "A=5;",
            "export A;",
            "kill -USR2 $$;",
            "echo $A",
        ],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.returncode, done.stdout) == (0, "5\n")
    hydra = write_qrsh_script(on_two_hosts("qrsh -inherit"), tmp_path, Mpirun("mpiexec", "mpich"))
    assert hydra.placement.remote_shell == f"{tmp_path}/remote_shell"
