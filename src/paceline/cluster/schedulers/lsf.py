"""LSF: bsub, bjobs, bkill. Its scripts have not met a real cluster yet.

A slot stands for a core: so many slots are asked for as the ranks have threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.cluster.schedulers.interface import Ask, Hint, Remedy, State
from paceline.cluster.schedulers.request import SCRIPT, JobRequest, fault, named
from paceline.cluster.schedulers.script import ScriptDialect, write_script

TITLE = "LSF"
BY_HAND = f"bsub < {SCRIPT}"
HAND_IN: tuple[str, ...] = ("sh", "-c", BY_HAND)
HINTS: tuple[Hint, ...] = (
    Hint("watch", "bjobs -l {job}"),
    Hint("stop", "bkill {job}"),
)
REMEDIES: tuple[Remedy, ...] = (
    Remedy("no such queue", "Choose another --queue", ("bqueues", "-noheader", "-o", "queue_name")),
    Remedy("run limit", "Ask for less --time; bqueues -l shows the queues' limits"),
    Remedy("runlimit", "Ask for less --time; bqueues -l shows the queues' limits"),
    Remedy("project", "Name an --account (LSF: a project) that you may use"),
    Remedy("resource requirement", "Ask for less per node; lshosts shows what the nodes have"),
)

_DIALECT = ScriptDialect(
    by_hand=BY_HAND,
    job="$LSB_JOBID",
    task="$LSB_JOBINDEX",
    signals="LSF sends SIGUSR1 before the run limit and SIGUSR2 at it, SIGTERM by bkill.",
    warnings="USR1 USR2",
    cancels="TERM INT",
    restarts='$(cat "$run_dir/job-$job.requeues" 2>/dev/null || echo 0)',
    requeue=(
        'echo "$((restarts + 1))" >"$run_dir/job-$job.requeues"',
        "exit 99  # by -Q LSF starts this script again",
    ),
)
_WAITING = ("PEND", "PSUSP", "WAIT", "PROV")
_NAME = r"[A-Za-z0-9_][\w.+-]*"


def settle(request: JobRequest, ask: Ask) -> JobRequest:
    """There is nothing that only the site could tell."""
    return request


def check(request: JobRequest) -> list[str]:
    """Names that LSF would take for a pattern, an array or two words."""
    rule = "letters, digits and any of _ . + -, as LSF has it"
    return [
        fault(name, value, rule)
        for name, value in named(request)
        if not re.fullmatch(_NAME, value, re.ASCII)
    ]


def render(request: JobRequest) -> str:
    """Directives and the common script; paths are left to the script, which can quote them."""
    return write_script((f"#BSUB {line}" for line in _options(request)), request, _DIALECT)


def read_id(said: str) -> str | None:
    """`Job <12> is submitted to queue <normal>.`"""
    match = re.search(r"Job <(\d+)> is submitted", said)
    return match[1] if match else None


def read_state(job: str, ask: Ask) -> State:
    """bjobs knows a job for an hour or so after its end; of an array it tells every task."""
    answer = ask(("bjobs", "-noheader", "-o", "stat exit_code", job))
    if answer.code is None:
        return State("unknown")
    rows = re.findall(r"^\s*([A-Z]{3,6})\s+(\d+|-)\s*$", answer.said, re.MULTILINE)
    if not rows:
        return State("ended" if "is not found" in answer.said else "unknown")
    states = [state for state, _ in rows]
    if any(state in _WAITING for state in states):
        return State("waiting", None, "waiting")
    if any(state not in ("DONE", "EXIT") for state in states):
        return State("running", None, "running")
    codes = [0 if state == "DONE" else int(code) if code != "-" else 1 for state, code in rows]
    return State("ended", max(codes))


def _options(request: JobRequest) -> Iterator[str]:
    texts = dict(named(request))
    array = f"[1-{len(request.tasks)}]" if request.tasks else ""
    yield f'-J "{texts["name"]}{array}"'
    yield f"-n {request.nodes * request.cores_per_node}"
    yield f'-R "span[ptile={request.cores_per_node}]"'
    if request.memory_per_node is not None:
        yield f'-R "rusage[mem={request.memory_per_node}MB/host]"'
    if request.gpus_per_node is not None:
        yield f'-gpu "num={request.gpus_per_node}"'
    if request.time is not None:
        minutes = -(-request.time // 60)
        yield f"-W {minutes // 60:02d}:{minutes % 60:02d}"
        yield f"-wa USR1 -wt {-(-request.warning_s // 60)}"
    if "queue" in texts:
        yield f"-q {texts['queue']}"
    if "account" in texts:
        yield f"-P {texts['account']}"
    if request.after:
        yield f'-w "{" && ".join(f"done({job})" for job in request.after)}"'
    if request.requeue:
        yield "-r"
        yield '-Q "99"'
    if request.passed:
        yield '-env "all"'
    yield f"-o {'job-%J.%I.log' if request.tasks else 'job-%J.log'}"
    yield from request.extra
