"""PBS (OpenPBS, PBS Pro): qsub, qstat, qdel. Not tested on a real cluster yet.

PBS does not warn a job of its time limit, and users may not requeue jobs: so the script sends the
warning, and submits its successor, whose id it writes to `job-ID.next`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from paceline.cluster.hosts import SSH
from paceline.cluster.identity import (
    BATCH_SCRIPT,
    Environment,
    WorldSizeAdvice,
    describe_script,
    read_count,
)
from paceline.cluster.schedulers.interface import (
    Allocation,
    Ask,
    Hint,
    Kind,
    Remedy,
    State,
    add_up,
    read_host_list,
)
from paceline.cluster.schedulers.request import SCRIPT, UNTRIED, JobRequest, fault, named
from paceline.cluster.schedulers.script import ScriptDialect, write_script
from paceline.core.quantities import show_clock

TITLE = "PBS"
COMMANDS: tuple[str, ...] = ("qsub", "qstat", "pbsdsh")
MARKS: tuple[str, ...] = ("qsub", "pbsdsh")
RANKS_OPTION = "mpiprocs"
WORLD_SIZE_ADVICE: Mapping[str, WorldSizeAdvice] = {
    "pbs-batch": WorldSizeAdvice("PBS granted {n} ranks", BATCH_SCRIPT)
}
SUBMIT: tuple[str, ...] = ("qsub", SCRIPT)
SUBMIT_BY_HAND = f"qsub {SCRIPT}"
SUBMIT_NOTES = f"{UNTRIED}A job that has saved submits its successor; arrays do not. "
HINTS: tuple[Hint, ...] = (
    Hint("watch", "qstat -f {job}"),
    Hint("stop", "qdel {job}"),
    Hint("save and stop", "qsig -s USR2 {job}"),
)
REMEDIES: tuple[Remedy, ...] = (
    Remedy("unknown queue", "Choose another --queue (qstat -Q lists them)"),
    Remedy("walltime", "Ask for less --time; qstat -Qf shows the queues' limits"),
    Remedy("account", "Name an --account that you may use"),
    Remedy("resource", "Ask for less per node; pbsnodes -a shows what the nodes have"),
)

_DIALECT = ScriptDialect(
    warns_itself=True,
    by_hand=SUBMIT_BY_HAND,
    job="${PBS_JOBID%%[.[]*}",
    task="$PBS_ARRAY_INDEX",
    signals="SIGUSR1 comes before the time limit, SIGTERM when the job is cancelled (qdel).",
    warnings="USR1",
    cancels="TERM USR2",
    restarts="${PACELINE_REQUEUES:-0}",
    requeue=(),
    starts=('exec >>"$run_dir/job-$job.log" 2>&1  # PBS knows no number of the job in -o',),
)
_WAITING = "QHWT"
_NAME = r"[A-Za-z0-9_][\w.+-]{0,229}"


def detect(env: Mapping[str, str]) -> Environment | None:
    if "PBS_JOBID" not in env:
        return None
    # PBS_NP is Torque's. PBS Pro has a line for each rank in a file. NCPUS is last: it counts the
    # processors of the first host only, and they may be meant for threads.
    size = read_count(env, "PBS_NP") or _count_lines(env) or read_count(env, "NCPUS") or 1
    return describe_script("pbs-batch", size)


def _count_lines(env: Mapping[str, str]) -> int:
    """The ranks in PBS_NODEFILE; 0 where there is none, as on all hosts but the first."""
    try:
        return len(Path(env["PBS_NODEFILE"]).read_text().split())
    except (KeyError, OSError):
        return 0


def read_job_id(env: Mapping[str, str]) -> str:
    return env.get("PBS_JOBID", "")


def read_allocation(env: Mapping[str, str]) -> Allocation | None:
    if "PBS_NODEFILE" not in env:
        return None
    names = read_host_list(env, "PBS_NODEFILE").split()
    threads = env.get("OMP_NUM_THREADS", "")  # PBS sets it from ompthreads=
    return Allocation(
        "pbs", add_up([(name, 1) for name in names]), int(threads) if threads.isdecimal() else None
    )


def choose_remote_shell(is_found: Callable[[str], bool], ask: Ask) -> str | None:
    return "pbs_tmrsh" if is_found("pbs_tmrsh") else " ".join(SSH)


def fill_in(request: JobRequest, ask: Ask) -> JobRequest:
    """Nothing here depends on the site."""
    return request


def check(request: JobRequest) -> list[str]:
    """Names that PBS refuses; its directives have no quoting."""
    rule = "letters, digits and any of _ . + -, for PBS"
    return [
        fault(name, value, rule)
        for name, value in named(request)
        if not re.fullmatch(_NAME, value.replace("@", "_"), re.ASCII)
    ]


def render(request: JobRequest) -> str:
    """Directives and the common script; paths are left to the script, which can quote them."""
    if request.tasks:  # one task of an array cannot be submitted again
        request = replace(request, requeue=0)
    dialect = replace(_DIALECT, requeue=_successor(request))
    return write_script((f"#PBS {line}" for line in _options(request)), request, dialect)


def read_id(said: str) -> str | None:
    """`12.server`, or `12[].server` of an array."""
    match = re.search(r"^(\d+(?:\[\])?)(?:\.\S+)?\s*$", said, re.MULTILINE)
    return match[1] if match else None


def read_state(job: str, ask: Ask) -> State:
    """`-x` also shows jobs that have ended, if the site keeps a history."""
    answer = ask(("qstat", "-x", "-f", job))
    if answer.code is None:
        return State("unknown")
    letter = re.search(r"job_state = (\w)", answer.said)
    if letter is None:
        return State("ended" if "Unknown Job" in answer.said else "unknown")
    code = re.search(r"Exit_status = (-?\d+)", answer.said)
    if letter[1] in "FX":
        return State("ended", _shell_code(int(code[1])) if code else None)
    kind: Kind = "waiting" if letter[1] in _WAITING else "running"
    return State(kind, None, kind)


def _shell_code(status: int) -> int:
    """PBS adds 256 to a signal's number, and has negative codes for jobs it could not start.

    >>> _shell_code(271), _shell_code(3), _shell_code(-2)
    (143, 3, 1)
    """
    return 1 if status < 0 else 128 + status - 256 if status > 256 else status


def _successor(request: JobRequest) -> tuple[str, ...]:
    # This -v replaces that of the directives.
    passed = ",".join(["PACELINE_REQUEUES", *request.passed])
    return (
        'export PACELINE_REQUEUES="$((restarts + 1))"',
        'next=$(cd "$run_dir" &&',
        f'    qsub -v {passed} -W depend=afterany:"$PBS_JOBID" job.sh) &&',
        '    echo "${next%%.*}" >"$run_dir/job-$job.next" && exit 75',
    )


def _options(request: JobRequest) -> Iterator[str]:
    texts = dict(named(request))
    yield f"-N {texts['name']}"
    chunk = [f"ncpus={request.cores_per_node}", f"mpiprocs={request.ranks_per_node}"]
    chunk.append(f"ompthreads={request.threads}")
    if request.memory_per_node is not None:
        chunk.append(f"mem={request.memory_per_node}mb")
    if request.gpus_per_node is not None:
        chunk.append(f"ngpus={request.gpus_per_node}")
    yield f"-l select={request.nodes}:{':'.join(chunk)}"
    yield "-l place=scatter"
    if request.time is not None:
        yield f"-l walltime={show_clock(request.time)}"
    if "queue" in texts:
        yield f"-q {texts['queue']}"
    if "account" in texts:
        yield f"-A {texts['account']}"
    if request.after:
        yield f"-W depend=afterok:{':'.join(request.after)}"
    if request.tasks:
        yield f"-J 1-{len(request.tasks)}"
    yield f"-r {'y' if request.requeue or request.tasks else 'n'}"
    if request.passed:
        yield f"-v {','.join(request.passed)}"
    yield "-S /bin/bash"
    yield "-j oe"
    yield f"-o {'pbs.^array_index^.log' if request.tasks else 'pbs.log'}"
    yield from request.extra
