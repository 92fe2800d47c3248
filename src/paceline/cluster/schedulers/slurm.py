"""Slurm: sbatch, scontrol, scancel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from paceline.cluster.hosts import Host
from paceline.cluster.identity import (
    BATCH_SCRIPT,
    Environment,
    WorldSizeAdvice,
    describe_script,
    read_count,
    read_index,
    refuse_value,
)
from paceline.cluster.schedulers.interface import (
    Allocation,
    Ask,
    Hint,
    Kind,
    Remedy,
    State,
)
from paceline.cluster.schedulers.request import SCRIPT, JobRequest, fault, named
from paceline.cluster.schedulers.script import ScriptDialect, write_script
from paceline.core.quantities import show_clock
from paceline.errors import LaunchError

TITLE = "Slurm"
COMMANDS: tuple[str, ...] = ("sbatch", "srun", "salloc", "scontrol")
MARKS: tuple[str, ...] = ("sbatch",)
RANKS_OPTION = "--ntasks"
WORLD_SIZE_ADVICE: Mapping[str, WorldSizeAdvice] = {
    "slurm-step": WorldSizeAdvice(
        "srun started {n} tasks",
        "Use `srun --mpi=pmix` (or pmi2 with MPICH), or start with "
        "`mpirun`/`paceline train -n {n}`.",
    ),
    "slurm-batch": WorldSizeAdvice("Slurm allocated {n} tasks", BATCH_SCRIPT),
}
SUBMIT: tuple[str, ...] = ("sbatch", "--parsable", SCRIPT)
SUBMIT_BY_HAND = f"sbatch {SCRIPT}"
SUBMIT_NOTES = ""
HINTS: tuple[Hint, ...] = (
    Hint("watch", "squeue --jobs {job}"),
    Hint("stop", "scancel {job}"),
    Hint("save and stop", "scancel --batch --signal=TERM {job}"),
)
REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "invalid partition",
        "Choose another --queue",
        ("sinfo", "--noheader", "--format=%R"),
    ),
    Remedy(
        "node configuration is not available",
        "No node has that many cores, that much memory or those GPUs: ask for less per node "
        "(--ranks-per-node, --threads, --memory-per-rank, --gpus-per-node)",
        ("sinfo", "--noheader", "--format=%R: %D nodes of %c cores and %m MB"),
    ),
    Remedy(
        "node count",
        "Ask for fewer --nodes",
        ("sinfo", "--noheader", "--format=%R: %D nodes of %c cores and %m MB"),
    ),
    Remedy(
        "time limit",
        "Ask for less --time; the run goes on from its checkpoint in the next job",
        ("sinfo", "--noheader", "--format=%R: at most %l"),
    ),
    Remedy("account", "Name an --account that you may use: sacctmgr show associations user=$USER"),
    Remedy(
        "Partition",  # PartitionTimeLimit, PartitionNodeLimit, PartitionConfig
        "The partition does not have that much: ask for fewer --nodes, less per node, less --time",
        ("sinfo", "--noheader", "--format=%R: %D nodes of %c cores and %m MB, at most %l"),
    ),
    Remedy("dependency", "Name jobs of your own that Slurm still knows in --after: squeue --me"),
    Remedy("unable to contact", "Slurm's controller does not answer: scontrol ping"),
)

_DIALECT = ScriptDialect(
    by_hand=SUBMIT_BY_HAND,
    job="$SLURM_JOB_ID",
    task="$SLURM_ARRAY_TASK_ID",
    signals="Slurm sends SIGUSR1 before the time limit, SIGTERM when the job is cancelled.",
    warnings="USR1",
    cancels="TERM",
    restarts="${SLURM_RESTART_COUNT:-0}",
    requeue=('scontrol requeue "$SLURM_JOB_ID" && exit 75  # Slurm starts this script again',),
)
_HOPELESS = (
    "PartitionTimeLimit",
    "PartitionNodeLimit",
    "PartitionConfig",
    "DependencyNeverSatisfied",
    "launch_failed_requeued_held",
)
"""Reasons for which a job waits until a person helps."""
_ARRAY = "$SLURM_ARRAY_JOB_ID"
_ENDED = {
    "COMPLETED": 0,
    "FAILED": 1,
    "CANCELLED": 143,
    "TIMEOUT": 143,
    "DEADLINE": 143,
    "PREEMPTED": 143,
    "OUT_OF_MEMORY": 137,
    "NODE_FAIL": 1,
    "BOOT_FAIL": 1,
}
"""States of a job that has ended, and the exit code if Slurm gives none."""


# Slurm's reserved step ids: the shell of `salloc` and the batch script are steps of one task each.
_LONE_STEPS = ("4294967290", "4294967291")
_TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"


def detect(env: Mapping[str, str]) -> Environment | None:
    return _read_step(env) or _read_batch(env)


def _read_step(env: Mapping[str, str]) -> Environment | None:
    size = read_count(env, "SLURM_STEP_NUM_TASKS") or read_count(env, "SLURM_NTASKS")
    step = env.get("SLURM_STEP_ID")
    if size is None or step is None or step in _LONE_STEPS:
        return None
    return Environment(
        kind="slurm-step",
        rank=read_index(env, "SLURM_PROCID"),
        size=size,
        local_rank=read_index(env, "SLURM_LOCALID"),
        local_size=_read_local_size(env),
        # One task is `srun --pty bash`: a shell in which people start their own ranks.
        launched=size > 1,
    )


def _read_batch(env: Mapping[str, str]) -> Environment | None:
    size = read_count(env, "SLURM_NTASKS")
    return None if size is None else describe_script("slurm-batch", size)


def _read_local_size(env: Mapping[str, str]) -> int | None:
    """The tasks of this step on this node."""
    node = read_index(env, "SLURM_NODEID")
    if node is None or _TASKS_PER_NODE not in env:
        return None
    try:
        counts = expand_counts(env[_TASKS_PER_NODE])
    except ValueError:
        raise refuse_value(env, _TASKS_PER_NODE, "numbers as in 2(x3),1") from None
    return counts[node] if node < len(counts) else None


def read_job_id(env: Mapping[str, str]) -> str:
    return env.get("SLURM_JOB_ID") or env.get("SLURM_JOBID") or ""


def read_allocation(env: Mapping[str, str]) -> Allocation | None:
    nodes, job = env.get("SLURM_JOB_NODELIST"), env.get("SLURM_JOB_ID")
    if not nodes or not job:
        return None
    names, tasks = expand_nodes(nodes), env.get("SLURM_TASKS_PER_NODE")
    try:
        counts = [1] * len(names) if tasks is None else expand_counts(tasks)
    except ValueError as error:
        raise LaunchError(f"Slurm's SLURM_TASKS_PER_NODE: {error}. Unset it") from None
    threads = env.get("SLURM_CPUS_PER_TASK", "")
    if len(counts) != len(names):
        raise LaunchError(
            f"Slurm's SLURM_JOB_NODELIST={nodes} names {len(names)} hosts, but "
            f"SLURM_TASKS_PER_NODE={tasks} is for {len(counts)}. Start "
            "from the job's own shell or script"
        )
    return Allocation(
        "slurm",
        tuple(map(Host, names, counts)),
        int(threads) if threads.isdecimal() else None,
        env.get("SLURMD_NODENAME"),
    )


def choose_remote_shell(is_found: Callable[[str], bool], ask: Ask) -> str | None:
    """mpirun starts its daemons by srun."""
    return None


def expand_nodes(text: str) -> list[str]:
    """The hosts of Slurm's compressed list.

    >>> expand_nodes("n[08-10,12],gpu1")
    ['n08', 'n09', 'n10', 'n12', 'gpu1']
    """
    return [name for part in _split(text) for name in _expand(part)]


def expand_counts(text: str) -> list[int]:
    """The numbers of Slurm's compressed list.

    >>> expand_counts("2(x3),1")
    [2, 2, 2, 1]
    """
    parts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in text.split(",")]
    if None in parts:
        raise ValueError(f"{text!r} is not of the form 2(x3),1")
    return [int(part[1]) for part in parts if part for _ in range(int(part[2] or 1))]


def _split(text: str) -> Iterator[str]:
    """Split at the commas that are not inside brackets."""
    depth, part = 0, ""
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    if part:
        yield part


def _expand(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, after = rest.partition("]")
    for piece in inside.split(","):
        first, _, last = piece.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield from _expand(f"{before}{number:0{len(first)}d}{after}")


def fill_in(request: JobRequest, ask: Ask) -> JobRequest:
    """Nothing here depends on the site."""
    return request


def check(request: JobRequest) -> list[str]:
    """What Slurm would misread; any text on one line can be quoted."""
    wrong = []
    if re.search(r"\\|%[\w%]", str(request.run_dir)):
        wrong.append(
            f"the run directory is {str(request.run_dir)!r}, expected: no backslash and no % "
            "before a letter, since Slurm would write the log elsewhere; choose another --run-dir"
        )
    if request.account is not None and "," in request.account:
        wrong.append(fault("account", request.account, "the name of one account"))
    if request.warning_s > 65535:
        wrong.append(fault("save_time", request.warning_s, "at most 65535 s"))
    return wrong


def render(request: JobRequest) -> str:
    """Directives and the common script; paths are left to the script, which can quote them."""
    dialect = replace(_DIALECT, job=_ARRAY) if request.tasks else _DIALECT
    return write_script(_directives(request), request, dialect)


def read_id(said: str) -> str | None:
    """`123` or `123;cluster`."""
    match = re.search(r"^(\d+)(?:;\S+)?\s*$", said, re.MULTILINE)
    return match[1] if match else None


def read_state(job: str, ask: Ask) -> State:
    """scontrol knows a job for some minutes after its end (MinJobAge)."""
    answer = ask(("scontrol", "--oneliner", "show", "job", job))
    if answer.code is None or (answer.code and "Invalid job id" not in answer.said):
        return State("unknown")
    records = [_read_record(line) for line in answer.said.splitlines() if "JobState=" in line]
    if not records:
        return State("ended")
    order = ("stuck", "waiting", "running", "ended")
    least = min(records, key=lambda state: order.index(state.kind))
    codes = [state.code for state in records if state.code is not None]
    return State(least.kind, max(codes, default=None), least.detail)


def _read_record(line: str) -> State:
    fields = dict(re.findall(r"(\w+)=(\S*)", line))
    name, reason = fields["JobState"], fields.get("Reason", "None")
    detail = name.lower() if reason == "None" else f"{name.lower()}: {reason}"
    if name not in _ENDED:
        kind: Kind = (
            "stuck" if reason in _HOPELESS else "waiting" if name == "PENDING" else "running"
        )
        return State(kind, None, detail)
    code, _, signal = fields.get("ExitCode", "0:0").partition(":")
    if signal.isdecimal() and int(signal):
        return State("ended", 128 + int(signal), detail)
    return State("ended", int(code) or _ENDED[name], detail)


def _directives(request: JobRequest) -> Iterator[str]:
    return (f"#SBATCH {line}" for line in _options(request))


def _options(request: JobRequest) -> Iterator[str]:
    texts = dict(named(request))
    yield f"--job-name={quote(texts['name'])}"
    yield f"--nodes={request.nodes}"
    yield f"--ntasks-per-node={request.ranks_per_node}"
    yield f"--cpus-per-task={request.threads}"
    if request.memory_per_node is not None:
        yield f"--mem={request.memory_per_node}M"
    if request.gpus_per_node is not None:
        yield f"--gpus-per-node={request.gpus_per_node}"
    if request.time is not None:
        yield f"--time={show_clock(request.time)}"
    yield f"--signal=B:USR1@{request.warning_s}"
    if "queue" in texts:
        yield f"--partition={quote(texts['queue'])}"
    if "account" in texts:
        yield f"--account={quote(texts['account'])}"
    if request.after:
        yield f"--dependency=afterok:{':'.join(request.after)}"
        yield "--kill-on-invalid-dep=yes"
    if request.tasks:
        yield f"--array=1-{len(request.tasks)}"
    yield "--requeue" if request.requeue else "--no-requeue"
    if request.passed:
        yield f"--export={','.join(['ALL', *request.passed])}"
    yield "--open-mode=append"
    yield f"--output={'job-%A.%a.log' if request.tasks else 'job-%j.log'}"
    yield from request.extra


def quote(text: str) -> str:
    r"""A value for a directive of sbatch, which reads quotes and backslashes like a shell.

    >>> quote("short"), quote('my "big" job')
    ('short', '"my \\"big\\" job"')
    """
    if re.fullmatch(r"[\w.,:/@+-]+", text):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
