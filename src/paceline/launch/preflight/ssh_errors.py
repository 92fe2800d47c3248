"""Why a host did not answer: what ssh and the shell there say, and the remedy."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """Something that keeps ranks from starting: the subject, the hosts, the remedy."""

    subject: str
    hosts: tuple[str, ...]
    what: str
    remedy: str


_NOT_RUN = "the shell could not run it"
_REFUSALS = (
    (
        ("Could not resolve hostname", "Name or service not known"),
        "the name {host} is unknown here",
        "Write it as it is in DNS or /etc/hosts, or add it: `getent hosts {host}` must answer.",
    ),
    (
        ("REMOTE HOST IDENTIFICATION HAS CHANGED",),
        "the host key of {host} is not the one that is known",
        "If the machine was installed anew: `ssh-keygen -R {host}`, then connect once by hand.",
    ),
    (
        ("Host key verification failed",),
        "the host key of {host} is not known here, and ssh must not ask",
        "Connect once by hand (`ssh {host}`) and compare the key, or add it with "
        "`ssh-keyscan {host} >> ~/.ssh/known_hosts`.",
    ),
    (
        ("Permission denied",),
        "{host} does not let us in without a password",
        "Copy your key there: `ssh-copy-id {host}` (make one with `ssh-keygen` if there is none).",
    ),
    (
        ("Connection refused",),
        "{host} refuses connections: no ssh server listens there",
        "Start sshd there, or give its port for this host in ~/.ssh/config.",
    ),
    (
        ("timed out", "No route to host", "Network is unreachable", "Host is down"),
        "{host} cannot be reached: {said}",
        "Is it up, and does a firewall let ssh through? Try `ssh {host} true`.",
    ),
    (
        ("can't cd to", "cd: ", "chdir"),
        "the folder from which you start is not on {host}: {said}",
        "Start from a folder that all hosts have, best a shared one.",
    ),
    (
        (
            "No module named 'paceline.launch.preflight.probe'",
            "No module named paceline.launch.preflight.probe",
        ),
        "Paceline on {host} is older than here",
        "Install the same version there.",
    ),
    (
        ("No module named",),
        "{python} on {host} lacks a package: {said}",
        "Install Paceline there as it is here, or use one environment on a shared folder.",
    ),
    (
        (_NOT_RUN, "not found", "No such file or directory"),
        "{host} has no Python at {python}",
        "Install the same environment at the same path there, or put it on a shared folder.",
    ),
)


def explain_ssh_error(host: str, code: int | None, text: str) -> Problem:
    """Turn the message of ssh, a shell or the probe into a problem with its remedy.

    >>> explain_ssh_error("n7", 255, "ssh: Could not resolve hostname n7: ...").what
    'the name n7 is unknown here'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = lines[-1] if lines else f"exit code {code}"
    values = {"host": host, "said": said, "python": sys.executable}
    # ssh itself fails with 255; its messages and a shell's overlap.
    heard = _NOT_RUN if code in (126, 127) else text
    for marks, what, remedy in _REFUSALS:
        if any(mark in heard for mark in marks):
            return Problem("ssh", (host,), what.format(**values), remedy.format(**values))
    remedy = f"Try `ssh {host} {sys.executable} -m paceline.launch.preflight.probe` by hand."
    return Problem("ssh", (host,), f"{host} could not be asked: {said}", remedy)
