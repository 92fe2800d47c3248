"""Before ranks start on several hosts: can all be reached, and do they have the same software?"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.cluster.hosts import SSH, is_here
from paceline.errors import LaunchError
from paceline.launch.preflight.node_info import NodeInfo, from_json
from paceline.launch.preflight.ssh_errors import Problem, explain_ssh_error

FORWARDED = (
    *("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"),
    *("MPI4PY_LIBMPI", "MPI4PY_MPIABI"),
)
"""Variables of ours that decide which software ranks find."""
PROBE_TIMEOUT_S = 90.0
"""For one host. All are probed at once."""
SKEW_S = 30.0
"""A clock that is off by more is a problem: files of a run would get times in the future."""
_AT_ONCE = 32


@dataclass(frozen=True)
class HostReply:
    """The result of probing one host: its facts, or the problem."""

    facts: NodeInfo | None
    problem: Problem | None = None


def check_hosts(names: Sequence[str], remote_shell: Sequence[str] = SSH) -> dict[str, NodeInfo]:
    """The facts of all hosts, if each can be reached and has the same software as this one.

    All problems are one LaunchError. This machine is compared, too, since mpirun runs
    here.
    """
    answers = ask_hosts(names, remote_shell)
    facts = {name: answer.facts for name, answer in answers.items() if answer.facts is not None}
    problems = [answer.problem for answer in answers.values() if answer.problem is not None]
    problems += compare(with_this_host(facts))
    if problems:
        listed = "\n".join(f"  - {one.what}. {one.remedy}" for one in problems)
        raise LaunchError(f"the ranks cannot be started on {', '.join(answers)}:\n{listed}")
    return facts


def ask_hosts(names: Sequence[str], remote_shell: Sequence[str] = SSH) -> dict[str, HostReply]:
    """Run the probe on all hosts at the same time; problems are reported by host."""
    once = list(dict.fromkeys(names))
    if not once:
        return {}
    with ThreadPoolExecutor(min(len(once), _AT_ONCE)) as pool:
        return dict(zip(once, pool.map(lambda name: _ask(name, remote_shell), once), strict=True))


def with_this_host(facts: Mapping[str, NodeInfo]) -> dict[str, NodeInfo]:
    """The facts of hosts and, unless it is one of them, of this machine."""
    if any(is_here(name) for name in facts) or not facts:
        return dict(facts)
    here = _ask(socket.gethostname(), ()).facts
    return dict(facts) if here is None else {here.host: here, **facts}


def wrap_remote(remote_shell: Sequence[str], name: str, command: Sequence[str]) -> list[str]:
    """The command line that runs a command on a host; its last word is a line for the shell there.

    The host's name is appended to the remote shell, or replaces a word `{host}` in it.
    """
    given = [f"{one}={os.environ[one]}" for one in FORWARDED if one in os.environ]
    # In the folder in which ranks will start. These words mean the same to every shell.
    line = f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(['env', *given, *command])}"
    named = [name if word == "{host}" else word for word in remote_shell]
    return [*named, line] if "{host}" in remote_shell else [*named, name, line]


def _ask(name: str, remote_shell: Sequence[str]) -> HostReply:
    command = (sys.executable, "-m", "paceline.launch.preflight.probe")
    argv = list(command) if is_here(name) else wrap_remote(remote_shell, name, command)
    started = time.time()
    try:
        asked = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return HostReply(None, explain_ssh_error(name, None, str(error)))
    if asked.returncode:
        return HostReply(None, explain_ssh_error(name, asked.returncode, asked.stderr))
    try:
        facts = from_json(asked.stdout)
    except LaunchError as error:
        return HostReply(None, explain_ssh_error(name, 0, str(error)))
    return HostReply(replace(facts, skew_s=skew(facts.time_s, started, time.time())))


def skew(told_s: float, before_s: float, after_s: float) -> float:
    """How far a clock is off, at least, if it was read between two times of ours.

    >>> skew(100.0, 99.0, 101.0), skew(3700.0, 99.0, 101.0)
    (0.0, 3599.0)
    """
    return max(told_s - after_s, 0.0) + min(told_s - before_s, 0.0)


@dataclass(frozen=True)
class _Same:
    """Something that must be the same on all hosts."""

    subject: str
    what: str
    read: Callable[[NodeInfo], str | None]
    remedy: str


_INSTALL = "Install the same version on all hosts, or use one environment on a shared folder"
_SAME = (
    _Same("Python", "Python", lambda facts: facts.python, f"{_INSTALL}."),
    _Same("Paceline", "Paceline's version", lambda facts: facts.paceline, f"{_INSTALL}."),
    _Same(
        "Paceline",
        "Paceline's source",
        lambda facts: facts.digest and f"source {facts.digest}",
        "The version is the same, but not the files: install it again on all hosts.",
    ),
    _Same("numpy", "numpy", lambda facts: facts.numpy, f"{_INSTALL}."),
    _Same("torch", "torch", lambda facts: facts.torch, f"{_INSTALL}."),
    _Same("mpi4py", "mpi4py", lambda facts: facts.mpi4py, f"{_INSTALL}."),
    _Same(
        "MPI library",
        "the MPI library",
        lambda facts: _library(facts),
        "Ranks of two MPIs cannot communicate: use the same one on all hosts. MPI4PY_LIBMPI or "
        "LD_LIBRARY_PATH, set on one of them, may be the cause.",
    ),
    _Same(
        "mpirun",
        "mpirun",
        lambda facts: f"{facts.mpirun_kind} {facts.mpirun_version}" if facts.mpirun else None,
        "Use the mpirun of the same MPI on all hosts.",
    ),
)


def compare(facts: Mapping[str, NodeInfo]) -> list[Problem]:
    """What differs between hosts and must not."""
    found = [one for same in _SAME for one in _differences(same, facts)]
    version_differs = any(one.what.startswith("Paceline's version") for one in found)
    kept = [one for one in found if not (version_differs and one.what.startswith("Paceline's so"))]
    return [*kept, *_twins(facts), *_clocks(facts)]


def _differences(same: _Same, facts: Mapping[str, NodeInfo]) -> list[Problem]:
    hosts_of: dict[str, list[str]] = {}
    for host, one in facts.items():
        hosts_of.setdefault(same.read(one) or "none", []).append(host)
    if len(hosts_of) < 2:
        return []
    listed = "; ".join(f"{value} on {', '.join(hosts)}" for value, hosts in hosts_of.items())
    return [Problem(same.subject, tuple(facts), f"{same.what} differs: {listed}", same.remedy)]


def _twins(facts: Mapping[str, NodeInfo]) -> list[Problem]:
    names_of: dict[str, list[str]] = {}
    for name, one in facts.items():
        names_of.setdefault(one.host, []).append(name)
    return [
        Problem(
            "host names",
            tuple(names),
            f"{' and '.join(names)} all call themselves {host}",
            "Name each host once, and give each machine a host name of its own: Open MPI "
            "distinguishes machines by it.",
        )
        for host, names in names_of.items()
        if len(names) > 1
    ]


def _clocks(facts: Mapping[str, NodeInfo]) -> list[Problem]:
    return [
        Problem(
            "clock",
            (name,),
            f"the clock of {name} is {abs(one.skew_s):.0f} s "
            f"{'ahead of' if one.skew_s > 0 else 'behind'} this host's, at most {SKEW_S:.0f} s "
            "are allowed",
            "Set it, best by NTP (`timedatectl set-ntp true`, or chronyd).",
        )
        for name, one in facts.items()
        if abs(one.skew_s) > SKEW_S
    ]


def _library(facts: NodeInfo) -> str | None:
    return facts.libmpi_version.split(",")[0].split("\n")[0] if facts.libmpi_version else None
