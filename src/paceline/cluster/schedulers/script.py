"""The part of a job script that is the same for all schedulers: plain bash.

A scheduler warns a job before its time limit. The script forwards the warning to Paceline, which
saves and ends with code 75; then the script has the scheduler start the job again, as it does when
a host was lost. A job that is cancelled saves, too, if there is time, but is not started again.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.cluster.schedulers.request import JobRequest
from paceline.errors import HOST_LOST, SAVED


@dataclass(frozen=True, kw_only=True)
class ScriptDialect:
    """What the script must know about its scheduler, as bash."""

    by_hand: str
    """How a person would submit the script by hand."""
    job: str
    """The id of the job."""
    task: str
    """The number of the task in the array."""
    warnings: str
    """Signals that are sent before the time limit."""
    cancels: str
    """Signals that are sent when the job is cancelled."""
    signals: str
    """The comment about them."""
    restarts: str
    """How often the job has been requeued."""
    requeue: tuple[str, ...]
    """Lines that requeue the job and end the script."""
    starts: tuple[str, ...] = ()
    """The first lines."""
    warns_itself: bool = False
    """The scheduler sends no useful warning: the script sends its own."""


def quote(text: str) -> str:
    """One word of bash, on one line: some schedulers look for directives on every line.

    >>> quote("it's $HOME"), quote("plain"), quote("two" + chr(10) + "lines")
    ('\\'it\\'"\\'"\\'s $HOME\\'', 'plain', "$'two\\\\x0alines'")
    """
    return shlex.quote(text) if text.isprintable() else f"$'{''.join(map(_escaped, text))}'"


def join(words: Iterable[str]) -> str:
    """A command line of bash."""
    return " ".join(map(quote, words))


def write_script(directives: Iterable[str], request: JobRequest, dialect: ScriptDialect) -> str:
    """The whole script."""
    warns_itself = dialect.warns_itself and request.time is not None
    parts = [
        ["#!/bin/bash", *directives],
        _opening(request, dialect),
        _surroundings(request),
        _tasks(request, dialect) if request.tasks else [],
        _command(request, dialect),
        _timer(request) if warns_itself else [],
        _waiting(warns_itself),
        _requeueing(request, dialect) if request.requeue else [],
        ['finish "$code"'],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _escaped(letter: str) -> str:
    if letter.isprintable() and letter not in "\\'":
        return letter
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))


def _opening(request: JobRequest, dialect: ScriptDialect) -> list[str]:
    number = f"{dialect.job}.{dialect.task}" if request.tasks else dialect.job
    return [
        "# Written by `paceline submit`. A job that was stopped goes on from its checkpoint when",
        f"# this script is submitted again, from the directory it lies in: {dialect.by_hand}",
        f"run_dir={quote(str(request.run_dir))}",
        f"job={number}",
        *dialect.starts,
        'rm -f "$run_dir/job-$job.exit"',
        "",
        "finish() {  # the exit code stays beside the log: `paceline submit --wait` reads it",
        '    echo "$1" >"$run_dir/job-$job.exit"',
        '    exit "$1"',
        "}",
    ]


def _surroundings(request: JobRequest) -> list[str]:
    lines = ["# What the command finds: software, variables, and where it was submitted from."]
    if request.modules:
        lines.append("type module >/dev/null 2>&1 || . /etc/profile  # a batch shell may lack it")
    lines += [f"module load {quote(module)} || finish 1" for module in request.modules]
    lines += [_variable(name, value) for name, value in request.env]
    return [*lines, f"cd {quote(str(request.directory))} || finish 1", "set -u"]


def _variable(name: str, value: str | None) -> str:
    if value is not None:
        return f"export {name}={quote(value)}"
    missing = f"paceline: {name} is not set in this job; export it before you submit"
    return f'[ -n "${{{name}+set}}" ] || {{ echo "{missing}" >&2; finish 2; }}'


def _tasks(request: JobRequest, dialect: ScriptDialect) -> list[str]:
    cases = [f"    {n}) added=({join(words)}) ;;" for n, words in enumerate(request.tasks, start=1)]
    return [
        "# What each task of the array adds to the command.",
        f"case {dialect.task} in",
        *cases,
        f'    *) echo "paceline: there is no task {dialect.task}" >&2; finish 2 ;;',
        "esac",
    ]


def _command(request: JobRequest, dialect: ScriptDialect) -> list[str]:
    words = join([request.python, "-m", "paceline", *request.command])
    added = ' "${added[@]}"' if request.tasks else ""
    return [
        f"# {dialect.signals}",
        "# Either lets Paceline save and end; SIGUSR1 does no harm if it comes twice.",
        "pid= signalled= cancelled=",
        f"trap 'signalled=yes; kill -USR1 $pid 2>/dev/null' {dialect.warnings}",
        f"trap 'signalled=yes; cancelled=yes; kill -USR1 $pid 2>/dev/null' {dialect.cancels}",
        "",
        "# The command, in the background: bash heeds signals only while it waits.",
        f"{words}{added} &",
        "pid=$!",
        '[ -z "$signalled" ] || kill -USR1 "$pid"  # it came early',
    ]


def _timer(request: JobRequest) -> list[str]:
    seconds = (request.time or 0) - request.warning_s
    return [
        "# The warning, in good time before the limit.",
        "(",
        "    trap '' USR1 USR2",
        "    trap 'kill $!; exit' TERM",
        f"    sleep {seconds} &",
        "    wait $! && kill -USR1 $$",
        ") &",
        "timer=$!",
    ]


def _waiting(has_timer: bool) -> list[str]:
    return [
        "code=127",
        "while :; do",
        "    signalled=",
        '    wait "$pid"; status=$?',
        "    case $status in 127 | -1) ;; *) code=$status ;; esac  # 127, -1: bash forgot it",
        '    [ -n "$signalled" ] || break  # a signal ends `wait`, not the command',
        "done",
        *(['kill "$timer" 2>/dev/null'] if has_timer else []),
    ]


def _requeueing(request: JobRequest, dialect: ScriptDialect) -> list[str]:
    return [
        f"# {SAVED}: saved before the end. {HOST_LOST}: a host was lost. Unless it was cancelled,",
        "# the job goes on from its newest checkpoint.",
        f"restarts={dialect.restarts}",
        f'if {{ [ "$code" -eq {SAVED} ] || [ "$code" -eq {HOST_LOST} ]; }} && [ -z "$cancelled" ];'
        " then",
        f'    if [ "$restarts" -lt {request.requeue} ]; then',
        '        echo "paceline: back into the queue,'
        f' time $((restarts + 1)) of at most {request.requeue}"',
        *(f"        {line}" for line in dialect.requeue),
        "    fi",
        f'    echo "paceline: to go on, in $run_dir: {dialect.by_hand}"',
        "fi",
    ]
