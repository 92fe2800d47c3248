"""Asking hosts before ranks are started: what differs, and why one did not answer.

The agents here are small scripts in the place of ssh: they get a host's name and a line for its
shell. The real one is met in tests/clusters.
"""

import sys
from dataclasses import replace

import pytest

from paceline.launch.preflight.check import compare, skew, wrap_remote
from paceline.launch.preflight.node_info import NodeInfo
from paceline.launch.preflight.ssh_errors import explain_ssh_error

FACTS = NodeInfo(
    host="n1",
    python="3.11.7",
    paceline="0.1.0",
    digest="abc",
    numpy="2.4.6",
    torch="2.13.0",
    mpi4py="4.1.2",
    libmpi_version="Open MPI v5.0.11, package: here",
    mpirun="/venv/bin/mpirun",
    mpirun_kind="openmpi",
    mpirun_version="5.0.11",
    cores=4,
)


def nodes(**changes: object) -> dict[str, NodeInfo]:
    """Two nodes; the changes are the second one's."""
    return {"n1": FACTS, "n2": replace(FACTS, **{"host": "n2", **changes})}


def test_equal_hosts_are_no_problem():
    assert compare(nodes()) == []
    assert compare({}) == []


@pytest.mark.parametrize(
    ("changes", "subject", "what"),
    [
        ({"python": "3.12.1"}, "Python", "Python differs: 3.11.7 on n1; 3.12.1 on n2"),
        ({"paceline": "0.2.0", "digest": "x"}, "Paceline", "version differs: 0.1.0 on n1; 0.2.0"),
        ({"digest": "xyz"}, "Paceline", "source differs: source abc on n1; source xyz on n2"),
        ({"numpy": "1.26"}, "numpy", "numpy differs: 2.4.6 on n1; 1.26 on n2"),
        ({"torch": None}, "torch", "torch differs: 2.13.0 on n1; none on n2"),
        ({"mpi4py": "4.0"}, "mpi4py", "mpi4py differs: 4.1.2 on n1; 4.0 on n2"),
        (
            {"libmpi_version": "MPICH Version: 5.0.2\nMPICH Release"},
            "MPI library",
            "MPI library differs: Open MPI v5.0.11 on n1; MPICH Version: 5.0.2 on n2",
        ),
        ({"mpirun_version": "5.0.8"}, "mpirun", "openmpi 5.0.11 on n1; openmpi 5.0.8 on n2"),
        ({"host": "n1"}, "host names", "n1 and n2 all call themselves n1"),
        ({"skew_s": 3600.0}, "clock", "the clock of n2 is 3600 s ahead of this host's"),
        ({"skew_s": -3600.0}, "clock", "the clock of n2 is 3600 s behind this host's"),
    ],
)
def test_what_differs_is_named_with_both_values(changes, subject, what):
    (problem,) = compare(nodes(**changes))
    assert problem.subject == subject
    assert what in problem.what
    assert problem.remedy


def test_another_build_of_the_same_mpi_and_a_small_skew_are_no_problem():
    assert compare(nodes(libmpi_version="Open MPI v5.0.11, package: there", skew_s=3.0)) == []


@pytest.mark.parametrize(
    ("told", "off"), [(10.0, 0.0), (10.9, 0.0), (9.0, -1.0), (13.0, 2.0), (11.0, 0.0)]
)
def test_a_clock_is_off_by_what_our_own_times_cannot_explain(told, off):
    assert skew(told, 10.0, 11.0) == off


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ("ssh: Could not resolve hostname n2: Name or service not known", "unknown here", "getent"),
        ("No ED25519 host key is known\nHost key verification failed.", "host key", "ssh-keyscan"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
         "not the one that is known", "ssh-keygen -R n2"),
        ("root@n2: Permission denied (publickey).", "without a password", "ssh-copy-id n2"),
        ("ssh: connect to host n2 port 22: Connection refused", "no ssh server", "sshd"),
        ("ssh: connect to host n2 port 22: Connection timed out", "cannot be reached", "firewall"),
        ("sh: 1: cd: can't cd to /data", "folder from which you start is not on n2", "shared"),
        ("bash: line 1: cd: /data: No such file or directory", "folder from which", "shared"),
        (f"bash: line 1: {sys.executable}: No such file or directory", "has no Python at", "path"),
        (f"sh: 1: exec: {sys.executable}: not found", "has no Python at", "path"),
        ("python: No module named paceline", "lacks a package: python: No module", "Install"),
        (
            "python: No module named paceline.launch.preflight.probe",
            "is older than here",
            "same version",
        ),
        ("Segmentation fault", "could not be asked: Segmentation fault", "by hand"),
        ("", "could not be asked: exit code 255", "by hand"),
    ],
)  # fmt: skip
def test_a_refusal_is_explained(text, what, remedy):
    problem = explain_ssh_error("n2", 255, text)
    assert what in problem.what
    assert remedy in problem.remedy
    assert problem.hosts == ("n2",)


@pytest.mark.parametrize("code", [126, 127])
def test_a_shell_that_may_not_run_python_is_not_taken_for_ssh(code):
    problem = explain_ssh_error("n2", code, f"bash: {sys.executable}: Permission denied")
    assert f"n2 has no Python at {sys.executable}" in problem.what


def test_a_host_is_named_where_the_agent_says():
    *words, _ = wrap_remote(("ssh", "-q"), "n1", ("a b",))
    assert words == ["ssh", "-q", "n1"]
    *words, _ = wrap_remote(("srun", "-w", "{host}", "sh", "-c"), "n1", ("a",))
    assert words == ["srun", "-w", "n1", "sh", "-c"]


def test_folders_and_words_are_quoted_for_the_shell_there(tmp_path, monkeypatch):
    (tmp_path / "it's $(here)").mkdir()
    monkeypatch.chdir(tmp_path / "it's $(here)")
    done = wrap_remote(("sh", "-c", "{host}"), "true", ("echo", "$HOME"))
    assert done[-1].endswith(" echo '$HOME'")
    assert "/it'\"'\"'s $(here)' &&" in done[-1]
