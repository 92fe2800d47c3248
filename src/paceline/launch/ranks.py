"""Start the ranks of a command, or join them as one of them; start them again after a failure."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.cluster.cores import THREAD_VARIABLES, available_cores
from paceline.cluster.detect import Environment, detect
from paceline.cluster.gpus import assign_gpus
from paceline.cluster.hosts import Host, parse_hosts, read_hostfile
from paceline.cluster.identity import NODE_STATE
from paceline.cluster.schedulers import read_allocation
from paceline.errors import SAVED, LaunchError, PacelineError
from paceline.launch.job import Job, Mpirun, Placement
from paceline.launch.job_dir import node_state
from paceline.launch.limits import check_folder, check_limits, complete_environment
from paceline.launch.mpirun import find_mpirun, outlives_ranks, start_alone, start_ranks
from paceline.launch.placement import RankPlan, describe_crowd, plan_ranks
from paceline.launch.rendezvous import PORTS_TRIED, rendezvous_env
from paceline.launch.restarts import (
    FINAL_CODES,
    Replacements,
    run_on_what_is_left,
    run_with_restarts,
)
from paceline.launch.srun import find_srun
from paceline.launch.supervise import JobResult
from paceline.runtime.compile_cache import keep_compile_cache_private
from paceline.runtime.job_dir import AGAIN, ELASTIC, RESTART, prepare_job_dir
from paceline.runtime.torchrun.env import RANKS_PER_HOST

_SIGNALLED = {130: "interrupted", 143: "terminated"}


@dataclass(frozen=True, kw_only=True)
class RankRequest:
    """How many ranks the user asked for, and where; None: unspecified."""

    ranks: int | None = None
    threads: int | None = None
    hosts: str | None = None
    """As in a:16,b:16."""
    hostfile: str | None = None
    launcher: str | None = None
    """mpirun or srun."""
    restarts: int = 0
    elastic: bool = False
    """Ranks may be lost, and the others go on."""
    least: int = 1
    """How many must be left for that."""
    replace: bool = False
    """Others take the place of ranks that are lost."""


def start_or_join(
    request: RankRequest,
    command: Sequence[str],
    join: Callable[[], int],
    again: Callable[[], Sequence[str]] | None = None,
    for_torch: bool = False,
    rescue: Callable[[Path | None], bool] = lambda memory: False,
) -> int:
    """Run `join` in this process if it is a rank or the only one, else start ranks of `command`.

    After a failure they are started again up to `request.restarts` times, with the command that
    `again` returns, else with the same. `for_torch`: ranks get the variables that torchrun sets,
    and see all GPUs, since such programs choose theirs by LOCAL_RANK; `paceline.init` assigns them.
    `rescue` copies what the node memory has of an elastic run to the disk, and says if the run can
    be resumed from there.
    """
    environment = detect()
    keep_compile_cache_private()
    if request.threads:  # the option wins over what the shell has set
        os.environ |= dict.fromkeys(THREAD_VARIABLES, str(request.threads))
    if environment.launched:
        _check_launched(environment, request)
        prepare_job_dir()
        if not for_torch:
            assign_gpus(environment)
        return join()
    if _is_lone_rank(environment, request):
        return join()
    check_folder()
    complete_environment(os.environ)
    launcher = _find_launcher(request)
    plan = _plan(request) if launcher else _plan_one(request)
    is_alone = plan.ranks == 1 and not plan.placement.hosts and not request.restarts
    if is_alone and (launcher is None or not request.elastic):
        os.environ |= {"PACELINE_RANKS": "1", RESTART: "0"}
        with _torch_variables(plan.placement, for_torch) as variables:
            os.environ |= variables
            return join()
    if launcher is not None and launcher.kind == "openmpi" and not plan.placement.hosts:
        check_limits(plan.ranks)

    if not plan.placement.hosts:
        crowd = describe_crowd(plan.ranks, plan.threads, available_cores())
        if crowd is not None:
            sys.stderr.write(f"paceline: {crowd}\n")
    goes_on = request.elastic and again is not None
    with _starting_again(request, launcher, plan, goes_on) as (told, memory):

        def run(restart: int, plan: RankPlan = plan) -> JobResult:
            words = again() if restart and again is not None else command
            return _start_with_free_port(
                words, restart, plan, launcher, for_torch, request.elastic, told
            )

        def run_elastic(restart: int) -> JobResult:
            replacements = Replacements(memory) if request.replace else None
            return run_on_what_is_left(
                lambda n, left: run(restart + n, left), plan, request.least, memory, replacements
            )

        ended = run_with_restarts(run_elastic if goes_on else run, request.restarts)
        if (memory is not None or ended.too_few) and ended.code not in FINAL_CODES:
            ended = _rescue(ended, memory, rescue)
    if ended.code in _SIGNALLED and ended.signalled and not ended.saved:
        sys.stderr.write(f"paceline: {_SIGNALLED[ended.code]}; all ranks were ended\n")
    return ended.code


@contextmanager
def _starting_again(
    request: RankRequest, launcher: Mpirun | None, plan: RankPlan, goes_on: bool
) -> Iterator[tuple[Mapping[str, str], Path | None]]:
    """Where a lost rank ends the others: what ranks are told of it, and the folder in node memory
    from which they are started again; said once."""
    if not request.elastic or launcher is None or outlives_ranks(launcher):
        yield {}, None
        return
    with ExitStack() as stack:
        memory, then = None, "all end; `--restarts N` starts them again"
        if goes_on and not plan.placement.hosts:
            memory = stack.enter_context(node_state())
        if goes_on:
            place = "the last checkpoint on disk" if memory is None else "node memory"
            then = f"those that are left start again from {place}"
        sys.stderr.write(
            f"paceline: ranks of {launcher.path} do not outlive each other: if one is lost, "
            f"{then}\n"
        )
        sys.stderr.flush()
        known = {} if memory is None else {NODE_STATE: str(memory)}
        yield {**known, ELASTIC: AGAIN} if goes_on else {}, memory


def _rescue(
    ended: JobResult, memory: Path | None, rescue: Callable[[Path | None], bool]
) -> JobResult:
    """An elastic run has ended before its time: its state goes to the disk. If too few ranks are
    left, it has saved for others to go on."""
    try:
        saved = rescue(memory)
    except PacelineError as error:
        sys.stderr.write(f"paceline: {error}\n")
        return ended
    if not saved or not ended.too_few or ended.signalled:
        return ended
    sys.stderr.write("paceline: too few ranks are left to go on; the run is saved\n")
    return replace(ended, code=SAVED, saved=True)


def _start_with_free_port(
    words: Sequence[str],
    restart: int,
    plan: RankPlan,
    launcher: Mpirun | None,
    for_torch: bool,
    elastic: bool,
    more: Mapping[str, str],
) -> JobResult:
    """Run the ranks to their end; if MASTER_PORT was taken, again with another."""
    program = (sys.executable, "-m", "paceline", *words)
    for attempt in range(PORTS_TRIED):
        with _torch_variables(plan.placement, for_torch) as variables:
            told = {**variables, **more}
            job = Job(plan.ranks, plan.threads, program, plan.placement, told, elastic)
            ended = _start(job, restart, launcher)
        if not ended.port_taken or ended.signalled:
            break
        if attempt + 1 < PORTS_TRIED:
            sys.stderr.write("paceline: starting the ranks again, with another port\n")
    return ended


def _start(job: Job, restart: int, launcher: Mpirun | None) -> JobResult:
    if launcher is None or (job.ranks == 1 and not job.placement.hosts and not job.elastic):
        return start_alone(job, restart)
    return start_ranks(job, restart, launcher)


@contextmanager
def _torch_variables(placement: Placement, for_torch: bool) -> Iterator[dict[str, str]]:
    """The variables by which torch.distributed finds other ranks, valid while the job runs."""
    if not for_torch:
        yield {}
        return
    counts = ",".join(str(host.slots or 1) for host in placement.hosts)
    with rendezvous_env(placement, os.environ) as variables:
        yield {**variables, RANKS_PER_HOST: counts}


def _check_launched(environment: Environment, request: RankRequest) -> None:
    """Refuse options that contradict the launcher; ours was given the same options."""
    fewer = request.elastic and "PACELINE_LAUNCHER" in os.environ  # it may have lost some
    if request.ranks not in (None, environment.size) and not fewer:
        raise LaunchError(
            f"you gave -n {request.ranks}, but {environment.kind} has started {environment.size} "
            "ranks already; omit -n"
        )
    if (
        request.hosts or request.hostfile or request.launcher
    ) and "PACELINE_LAUNCHER" not in os.environ:
        raise LaunchError(
            f"{environment.kind} has started the ranks already, on hosts of its own; omit --hosts, "
            "--hostfile and --launcher"
        )


def _find_launcher(request: RankRequest) -> Mpirun | None:
    """What starts the ranks; None if this process is to be the only one."""
    named = request.hosts or request.hostfile
    if request.ranks == 1 and not named and not request.elastic:
        return None
    if request.launcher == "srun":
        return find_srun()
    try:
        return find_mpirun()
    except LaunchError as error:
        if request.launcher is None and shutil.which("srun") and "SLURM_JOB_ID" in os.environ:
            return find_srun()
        if request.ranks or named or request.launcher:
            raise
        if available_cores() > 1:
            sys.stderr.write(f"paceline: one process with all cores, since {error}\n")
        return None


def _plan(request: RankRequest) -> RankPlan:
    hosts: tuple[Host, ...] = ()
    if request.hosts:
        hosts = parse_hosts(request.hosts)
    elif request.hostfile:
        hosts = read_hostfile(Path(request.hostfile))
    allocation = read_allocation()
    return plan_ranks(request.ranks, request.threads, hosts, allocation, request.elastic)


def _plan_one(request: RankRequest) -> RankPlan:
    return RankPlan(1, request.threads or available_cores(), Placement())


def _is_lone_rank(environment: Environment, request: RankRequest) -> bool:
    """Whether this process is the only rank of a job that our launcher restarts if it fails."""
    return RESTART in os.environ and environment.size == 1 and request.ranks in (None, 1)


def may_lose_hosts(request: RankRequest) -> bool:
    """Whether the run is on several hosts: mpirun ends with one that is lost."""
    allocation = read_allocation()
    several = allocation is not None and len(allocation.hosts) > 1
    return bool(request.hosts or request.hostfile) or several
