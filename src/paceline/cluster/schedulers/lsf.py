"""LSF: bsub, bjobs, bkill. Not tested on a real cluster yet.

A slot stands for a core: a job requests as many slots as its ranks have threads. A task that
`blaunch` started is no rank by itself: it is how mpirun reaches other hosts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from paceline.cluster.hosts import SSH
from paceline.cluster.identity import (
    BATCH_SCRIPT,
    Environment,
    WorldSizeAdvice,
    describe_script,
    read_count,
    read_rank,
    refuse_value,
)
from paceline.cluster.schedulers.interface import (
    Allocation,
    Ask,
    Hint,
    Remedy,
    State,
    add_up,
)
from paceline.cluster.schedulers.request import SCRIPT, UNTRIED, JobRequest, fault, named
from paceline.cluster.schedulers.script import ScriptDialect, write_script

TITLE = "LSF"
COMMANDS: tuple[str, ...] = ("bsub", "blaunch", "jsrun")
MARKS: tuple[str, ...] = ("bsub",)
RANKS_OPTION = "-n"
WORLD_SIZE_ADVICE: Mapping[str, WorldSizeAdvice] = {
    "lsf-step": WorldSizeAdvice(
        "jsrun started {n} tasks",
        "The MPI library of mpi4py is not the one that jsrun serves (IBM Spectrum MPI). Build "
        "mpi4py with that one, or start with `paceline run -n {n}`.",
    ),
    "lsf-batch": WorldSizeAdvice("LSF granted {n} slots", BATCH_SCRIPT),
}
SUBMIT_BY_HAND = f"bsub < {SCRIPT}"
SUBMIT: tuple[str, ...] = ("sh", "-c", SUBMIT_BY_HAND)
SUBMIT_NOTES = UNTRIED
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
    by_hand=SUBMIT_BY_HAND,
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


_SLOTS_PER_HOST = "LSB_MCPU_HOSTS"


def detect(env: Mapping[str, str]) -> Environment | None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    task = read_rank(env, "lsf-step", *(f"JSM_NAMESPACE_{name}" for name in names))
    if task is not None or "LSB_JOBID" not in env:
        return task
    slots = read_count(env, "LSB_DJOB_NUMPROC") or _add_up_slots(env)
    return describe_script("lsf-batch", slots)


def _add_up_slots(env: Mapping[str, str]) -> int:
    """The slots of `host 4 other 4`; 1 if the variable is not set."""
    counts = env.get(_SLOTS_PER_HOST, "").split()[1::2]
    if not all(count.isdecimal() for count in counts):
        raise refuse_value(env, _SLOTS_PER_HOST, "hosts and their slots as in 'n1 4 n2 4'")
    return sum(map(int, counts)) or 1


def read_job_id(env: Mapping[str, str]) -> str:
    return env.get("LSB_JOBID", "")


def read_allocation(env: Mapping[str, str]) -> Allocation | None:
    words = env.get("LSB_MCPU_HOSTS", "").split()
    if not words:
        return None
    pairs = zip(words[::2], words[1::2], strict=False)
    return Allocation("lsf", add_up([(name, int(count)) for name, count in pairs]))


def choose_remote_shell(is_found: Callable[[str], bool], ask: Ask) -> str | None:
    return "blaunch" if is_found("blaunch") else " ".join(SSH)


def fill_in(request: JobRequest, ask: Ask) -> JobRequest:
    """Nothing here depends on the site."""
    return request


def check(request: JobRequest) -> list[str]:
    """Names that LSF would read as a pattern, an array or two words."""
    rule = "letters, digits and any of _ . + -, for LSF"
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
    """bjobs knows a job for about an hour after its end; of an array it lists every task."""
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
