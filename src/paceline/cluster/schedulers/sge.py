"""Grid Engine: qsub, qstat, qacct, qdel.

A slot stands for a core, as on most sites: a job requests as many slots as its ranks have threads.
The parallel environment spreads them over the nodes; Grid Engine takes no number of nodes.

The soft limit s_rt is not used: it sends a parallel job no SIGUSR1 but ends it like the hard limit,
and whatever its exit code, it is not requeued (8.1.9). So the script itself sends the warning.

A task that `qrsh -inherit` started on another host may have the job's variables. It is no rank by
itself: it is how a launcher reaches that host, and the ranks have the launcher's variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

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
    CommandReply,
    Hint,
    Remedy,
    State,
    add_up,
    read_host_list,
)
from paceline.cluster.schedulers.request import SCRIPT, JobRequest, fault, named
from paceline.cluster.schedulers.script import ScriptDialect, write_script
from paceline.core.quantities import show_clock
from paceline.errors import LaunchError

TITLE = "Grid Engine"
COMMANDS: tuple[str, ...] = ("qsub", "qrsh", "qstat", "qconf")
MARKS: tuple[str, ...] = ("qsub", "qconf")
RANKS_OPTION = "-pe NAME"
WORLD_SIZE_ADVICE: Mapping[str, WorldSizeAdvice] = {
    "sge-batch": WorldSizeAdvice("Grid Engine granted {n} slots", BATCH_SCRIPT)
}
SUBMIT: tuple[str, ...] = ("qsub", "-terse", SCRIPT)
SUBMIT_BY_HAND = f"qsub {SCRIPT}"
SUBMIT_NOTES = (
    "A slot stands for a core: nodes x ranks x threads slots are requested. The parallel "
    "environment decides how they are spread over the nodes. --memory-per-rank requests mem_free, "
    "--gpus-per-node gpu, --account names a project; --after waits for jobs to end, well or not. "
)
HINTS: tuple[Hint, ...] = (
    Hint("watch", "qstat -j {job}"),
    Hint("stop", "qdel {job}"),
)
REMEDIES: tuple[Remedy, ...] = (
    Remedy("queue", "Choose another --queue", ("qconf", "-sql")),
    Remedy("parallel environment", "Choose another --pe", ("qconf", "-spl")),
    Remedy("project", "Choose another --account (Grid Engine: a project)", ("qconf", "-sprjl")),
    Remedy(
        "unknown resource",
        "The site calls it otherwise: omit --memory-per-rank or --gpus-per-node and request it "
        "by the site's name, as in --extra='-l h_vmem=2G'; `qconf -sc` lists them",
    ),
    Remedy("job name", "Choose another --name"),
    Remedy("unable to contact", "Grid Engine's master does not answer: is SGE_ROOT set?"),
)
USUAL_PE = "mpi"

_DIALECT = ScriptDialect(
    warns_itself=True,
    by_hand=SUBMIT_BY_HAND,
    job="$JOB_ID",
    task="$SGE_TASK_ID",
    signals="SIGUSR1 comes before the time limit, SIGUSR2 before Grid Engine kills the job (qdel).",
    warnings="USR1",
    cancels="USR2 TERM",
    restarts='$(cat "$run_dir/job-$job.requeues" 2>/dev/null || echo 0)',
    requeue=(
        'echo "$((restarts + 1))" >"$run_dir/job-$job.requeues"',
        "exit 99  # Grid Engine starts this script again",
    ),
)


def detect(env: Mapping[str, str]) -> Environment | None:
    # Others use JOB_ID and NSLOTS, too; PE_HOSTFILE is Grid Engine's alone.
    if "PE_HOSTFILE" not in env or "JOB_ID" not in env:
        return None
    slots = read_count(env, "NSLOTS")
    return None if slots is None else describe_script("sge-batch", slots)


def read_job_id(env: Mapping[str, str]) -> str:
    # SGE_ROOT is set on login nodes, too, and JOB_ID by others.
    job = env.get("JOB_ID", "")
    is_job = "PE_HOSTFILE" in env or ("SGE_ROOT" in env and job.isdigit())
    return job or "?" if is_job else ""


def read_allocation(env: Mapping[str, str]) -> Allocation | None:
    if "PE_HOSTFILE" not in env:
        return None
    lines = [
        line.split() for line in read_host_list(env, "PE_HOSTFILE").splitlines() if line.strip()
    ]
    hosts = [(line[0], int(line[1])) for line in lines if len(line) > 1 and line[1].isdecimal()]
    return Allocation("sge", add_up(hosts))


def choose_remote_shell(is_found: Callable[[str], bool], ask: Ask) -> str | None:
    """qrsh, so that programs are accounted for and end with the job, where the site allows it."""
    if not is_found("qrsh") or not _pe_starts_tasks(
        ask(("qconf", "-sp", os.environ.get("PE", "")))
    ):
        return " ".join(SSH)
    return "qrsh -inherit -nostdin -V"


def _pe_starts_tasks(shown: CommandReply) -> bool:
    """Whether the parallel environment has control_slaves; it has where qconf cannot be asked."""
    words = [line.split() for line in shown.said.splitlines()]
    return shown.code != 0 or ["control_slaves", "FALSE"] not in words


def fill_in(request: JobRequest, ask: Ask) -> JobRequest:
    """Choose the parallel environment: `mpi` if there is one, or the only one there is."""
    if _slots(request) == 1:
        return request
    listed = ask(("qconf", "-spl"))
    if request.pe is None and listed.code is not None:
        request = replace(request, pe=_choose_pe(listed))
    if request.nodes > 1 and request.pe is not None:
        _refuse_one_node(request, ask(("qconf", "-sp", request.pe)))
    return request


def check(request: JobRequest) -> list[str]:
    """What Grid Engine refuses or misreads; its directives have no quoting."""
    rule = "ASCII text without spaces, quotes, backslashes and #, for Grid Engine"
    wrong = [
        fault(name, value, rule)
        for name, value in named(request)
        if not re.fullmatch(r"""[^\s"'\\#]+""", value, re.ASCII) or not value.isascii()
    ]
    if re.search(r"[/:@*?]|^\d", request.name):
        rule = "no digit first and none of / : @ * ?, for Grid Engine"
        wrong.append(fault("name", request.name, rule))
    if re.search(r"\$(HOME|USER|HOSTNAME|JOB_ID|JOB_NAME|TASK_ID)", str(request.run_dir)):
        wrong.append(
            f"the run directory is {str(request.run_dir)!r}, expected: no $HOME, $USER and the "
            "like in its name, since Grid Engine replaces them; choose another --run-dir"
        )
    return wrong


def render(request: JobRequest) -> str:
    """Directives and the common script; paths are left to the script, which can quote them."""
    return write_script((f"#$ {line}" for line in _options(request)), request, _DIALECT)


def read_id(said: str) -> str | None:
    """`12`, or `12.1-5:1` of an array."""
    match = re.search(r"^(\d+)(?:\.\d+-\d+:\d+)?\s*$", said, re.MULTILINE)
    return match[1] if match else None


def read_state(job: str, ask: Ask) -> State:
    """qstat knows a job until it ends; qacct a few seconds later, if the site allows it."""
    answer = ask(("qstat", "-j", job))
    if answer.code == 0:
        return _read_live(answer.said)
    if answer.code is None or "do not exist" not in answer.said:
        return State("unknown")
    account = ask(("qacct", "-j", job))
    codes = [int(code) for code in re.findall(r"^exit_status\s+(\d+)", account.said, re.MULTILINE)]
    return State("ended", max(codes, default=None))


def _read_live(said: str) -> State:
    error = re.search(r"^error reason\s+\d+:\s*(.*)$", said, re.MULTILINE)
    if error:
        return State("stuck", None, f"in error: {error[1].strip()}")
    running = re.search(r"^(?:usage\s+\d+:|exec_host_list)", said, re.MULTILINE)
    return State("running" if running else "waiting", None, "running" if running else "waiting")


def _slots(request: JobRequest) -> int:
    return request.nodes * request.cores_per_node


def _choose_pe(listed: CommandReply) -> str:
    names = listed.said.split() if listed.code == 0 else []
    if USUAL_PE in names or not names:
        return USUAL_PE
    if len(names) == 1:
        return names[0]
    raise LaunchError(
        f"there is no parallel environment called {USUAL_PE}, but several others: choose one by "
        f"--pe ({', '.join(names)})"
    )


def _refuse_one_node(request: JobRequest, shown: CommandReply) -> None:
    if re.search(r"^allocation_rule\s+\$pe_slots", shown.said, re.MULTILINE):
        raise LaunchError(
            f"--nodes is {request.nodes}, but the parallel environment {request.pe} gives all "
            "slots on one node: choose another --pe (qconf -spl lists them), or --nodes 1"
        )


def _options(request: JobRequest) -> Iterator[str]:
    texts = dict(named(request))
    yield "-S /bin/bash"
    yield f"-N {texts['name']}"
    if _slots(request) > 1:
        yield f"-pe {request.pe or USUAL_PE} {_slots(request)}"
    if request.memory_per_rank is not None:
        yield f"-l mem_free={-(-request.memory_per_rank // request.threads)}M"
    if request.gpus_per_node is not None:
        yield f"-l gpu={request.gpus_per_node}"
    if request.time is not None:
        yield f"-l h_rt={show_clock(request.time)}"
    if "queue" in texts:
        yield f"-q {texts['queue']}"
    if "account" in texts:
        yield f"-P {texts['account']}"
    if request.after:
        yield f"-hold_jid {','.join(request.after)}"
    if request.tasks:
        yield f"-t 1-{len(request.tasks)}"
    yield f"-r {'y' if request.requeue else 'n'}"
    if request.passed:
        yield f"-v {','.join(request.passed)}"
    yield "-notify"
    yield "-cwd"
    yield "-j y"
    yield f"-o {'job-$JOB_ID.$TASK_ID.log' if request.tasks else 'job-$JOB_ID.log'}"
    yield from request.extra
