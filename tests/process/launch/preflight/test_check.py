"""Asking hosts before ranks are started, by agents that really run.

The agents here are small scripts in the place of ssh: they get a host's name and a line for its
shell. The real one is met in tests/clusters.
"""

import sys
from pathlib import Path

import pytest

from paceline.errors import LaunchError
from paceline.launch.preflight import check as preflight
from paceline.launch.preflight.check import ask_hosts, check_hosts


def agent(folder: Path, script: str) -> tuple[str, ...]:
    path = folder / "agent"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return (str(path),)


def test_hosts_answer_through_the_agent(tmp_path):
    script = agent(tmp_path, 'shift; exec sh -c "$*"')
    (answer,) = ask_hosts(["elsewhere", "elsewhere"], script).values()
    assert answer.facts is not None
    assert answer.facts.executable == sys.executable
    assert answer.facts.skew_s == 0.0


def test_all_problems_are_told_at_once(tmp_path):
    script = agent(
        tmp_path,
        'case $1 in\n'
        'n1) echo "ssh: connect to host n1 port 22: Connection refused" >&2; exit 255;;\n'
        'n2) echo "Host key verification failed." >&2; exit 255;;\n'
        'n3) echo \'{"host": "n3", "python": "2.7"}\';;\n'
        'esac',
    )  # fmt: skip
    with pytest.raises(LaunchError) as raised:
        check_hosts(["n1", "n2", "n3"], script)
    message = str(raised.value)
    assert "cannot be started on n1, n2, n3" in message
    for words in ("n1 refuses", "host key of n2", "2.7 on n3", "the clock of n3"):
        assert words in message


def test_a_host_that_never_answers_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "PROBE_TIMEOUT_S", 0.2)
    (answer,) = ask_hosts(["n1"], agent(tmp_path, "exec sleep 60")).values()
    assert answer.problem is not None
    assert "n1 cannot be reached" in answer.problem.what


def test_an_agent_that_is_missing_is_a_problem(tmp_path):
    (answer,) = ask_hosts(["n1"], (str(tmp_path / "ssh"),)).values()
    assert answer.problem is not None


def test_what_decides_the_mpi_of_a_rank_decides_that_of_the_probe(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3 of $(them)")
    script = agent(tmp_path, 'shift; unset OMP_NUM_THREADS; exec sh -c "$*"')
    (answer,) = ask_hosts(["elsewhere"], script).values()
    assert answer.facts is not None
    assert answer.facts.threads == "3 of $(them)"
