"""Start the ranks of a command, or join them as one of them; start them again after a failure."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.cluster.cores import THREAD_VARIABLES, available_cores
from paceline.cluster.detect import Environment, detect
from paceline.cluster.gpus import assign_gpus
from paceline.cluster.hosts import Host, parse_hosts, read_hostfile
from paceline.cluster.schedulers import read_allocation
from paceline.errors import SAVED, LaunchError
from paceline.launch.job import Job, Mpirun, Placement
from paceline.launch.limits import check_folder, check_limits, complete_environment
from paceline.launch.mpirun import find_mpirun, outlives_ranks, start_alone, start_ranks
from paceline.launch.placement import (
    RankPlan,
    describe_crowd,
    plan_ranks,
    without_host,
    without_rank,
)
from paceline.launch.rendezvous import PORTS_TRIED, rendezvous_env
from paceline.launch.srun import find_srun
from paceline.launch.supervise import JobResult
from paceline.runtime.compile_cache import keep_compile_cache_private
from paceline.runtime.job_dir import RESTART, prepare_job_dir
from paceline.runtime.torchrun.env import RANKS_PER_HOST

_SIGNALLED = {130: "interrupted", 143: "terminated"}
_LONGEST_PAUSE_S = 30.0
_FINAL_CODES = (0, 2, SAVED)
"""Done, wrong settings (they would be wrong again), saved and stopped on request."""


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


def start_or_join(
    request: RankRequest,
    command: Sequence[str],
    join: Callable[[], int],
    again: Callable[[], Sequence[str]] | None = None,
    for_torch: bool = False,
) -> int:
    """Run `join` in this process if it is a rank or the only one, else start ranks of `command`.

    After a failure they are started again up to `request.restarts` times, with the command that
    `again` returns, else with the same. `for_torch`: ranks get the variables that torchrun sets,
    and see all GPUs, since such programs choose theirs by LOCAL_RANK; `paceline.init` assigns them.
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
    if plan.ranks == 1 and not plan.placement.hosts and not request.restarts:
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

    def run(restart: int, plan: RankPlan = plan) -> JobResult:
        words = again() if restart and again is not None else command
        return _start_with_free_port(words, restart, plan, launcher, for_torch, request.elastic)

    def run_elastic(restart: int) -> JobResult:
        return run_on_what_is_left(lambda n, left: run(restart + n, left), plan, request.least)

    goes_on = request.elastic and again is not None
    ended = run_with_restarts(run_elastic if goes_on else run, request.restarts)
    if ended.code in _SIGNALLED and ended.signalled and not ended.saved:
        sys.stderr.write(f"paceline: {_SIGNALLED[ended.code]}; all ranks were ended\n")
    return ended.code


def _start_with_free_port(
    words: Sequence[str],
    restart: int,
    plan: RankPlan,
    launcher: Mpirun | None,
    for_torch: bool,
    elastic: bool,
) -> JobResult:
    """Run the ranks to their end; if MASTER_PORT was taken, again with another."""
    program = (sys.executable, "-m", "paceline", *words)
    for attempt in range(PORTS_TRIED):
        with _torch_variables(plan.placement, for_torch) as variables:
            job = Job(plan.ranks, plan.threads, program, plan.placement, variables, elastic)
            ended = _start(job, restart, launcher)
        if not ended.port_taken or ended.signalled:
            break
        if attempt + 1 < PORTS_TRIED:
            sys.stderr.write("paceline: starting the ranks again, with another port\n")
    return ended


def _start(job: Job, restart: int, launcher: Mpirun | None) -> JobResult:
    if launcher is None or (job.ranks == 1 and not job.placement.hosts):
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
    if request.ranks == 1 and not named:
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
    return plan_ranks(request.ranks, request.threads, hosts, read_allocation())


def _plan_one(request: RankRequest) -> RankPlan:
    return RankPlan(1, request.threads or available_cores(), Placement())


def _is_lone_rank(environment: Environment, request: RankRequest) -> bool:
    """Whether this process is the only rank of a job that our launcher restarts if it fails."""
    return RESTART in os.environ and environment.size == 1 and request.ranks in (None, 1)


def needs_checkpoints(request: RankRequest) -> bool:
    """Whether an elastic run may have to start again: mpirun ends with a lost host, and with a lost
    rank, too, if it is not of Open MPI 5."""
    allocation = read_allocation()
    several = allocation is not None and len(allocation.hosts) > 1
    launcher = _find_launcher(request)
    lasts = launcher is None or outlives_ranks(launcher)
    return bool(request.hosts or request.hostfile) or several or not lasts


def run_on_what_is_left(
    run: Callable[[int, RankPlan], JobResult], plan: RankPlan, least: int
) -> JobResult:
    """Call `run` with 0 and the plan; if a host or a rank was lost and the job with it, again on
    what is left, as long as there are so many ranks."""
    ended, left = run(0, plan), plan
    for number in range(1, plan.ranks):
        found = None
        if ended.lost_host is not None:
            found = without_host(left, ended.lost_host)
        elif ended.died:
            found = without_rank(left)
        if found is None or found.ranks < least or ended.signalled:
            break
        left = found
        sys.stderr.write(
            f"paceline: starting again from the last checkpoint, with {left.ranks} "
            f"rank{'s' * (left.ranks > 1)}\n"
        )
        sys.stderr.flush()
        ended = run(number, left)
    return ended


def run_with_restarts(
    run: Callable[[int], JobResult], restarts: int, sleep: Callable[[float], None] = time.sleep
) -> JobResult:
    """Call `run` with 0, and after each failure with the number of the restart, up to `restarts`.

    The pause before a restart is 1 s and doubles up to 30 s: the cause of a failure, a full disk or
    a lost file server, may take some time to go away.
    """
    ended = run(0)
    for number in range(1, restarts + 1):
        if ended.code in _FINAL_CODES or ended.signalled:
            break
        sys.stderr.write(
            f"paceline: the job failed with code {ended.code}; restart {number} of {restarts}\n"
        )
        sys.stderr.flush()
        sleep(min(2.0 ** (number - 1), _LONGEST_PAUSE_S))
        ended = run(number)
    return ended
