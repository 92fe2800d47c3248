"""How many ranks a command gets, and who starts them."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from paceline.cluster.cores import THREAD_VARIABLES, available_cores, most_threads
from paceline.cluster.detect import Environment, detect
from paceline.cluster.gpus import assign_gpus
from paceline.cluster.hosts import Host, parse_hosts, read_hostfile
from paceline.cluster.schedulers import read_allocation
from paceline.errors import LaunchError
from paceline.launch.limits import check_folder, check_limits, complete_environment
from paceline.launch.mpirun import find_mpirun, start_alone, start_ranks
from paceline.launch.mpirun_command import Job, Mpirun, Placement
from paceline.launch.placement import RankPlan, plan_ranks
from paceline.launch.rendezvous import PORTS_TRIED, rendezvous_env
from paceline.launch.restarts import run_with_restarts
from paceline.launch.srun import find_srun
from paceline.launch.supervise import JobResult
from paceline.runtime.compile_cache import keep_compile_cache_private
from paceline.runtime.job_dir import RESTART, prepare_job_dir
from paceline.runtime.torchrun.env import RANKS_PER_HOST

MOST_RANKS = 1_000_000
"""Of a job on many hosts."""
_SIGNALLED = {130: "interrupted", 143: "terminated"}


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--ranks",
        type=partial(_positive, most=MOST_RANKS),
        metavar="N",
        help="processes to start (default: the physical cores available; under mpirun or srun "
        "theirs are joined instead)",
    )
    parser.add_argument(
        "--threads",
        type=partial(_positive, most=most_threads()),
        metavar="T",
        help="threads per rank (default: $OMP_NUM_THREADS, else what the job was granted, else "
        "cores / ranks)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--hosts",
        metavar="A:16,B:16",
        help="machines to start ranks on by ssh, each with its number of ranks (default: its "
        "cores); in a job of a scheduler its hosts are known already",
    )
    where.add_argument(
        "--hostfile", metavar="FILE", help="the same from a file: a host per line, as A:16"
    )
    parser.add_argument(
        "--launcher",
        choices=("mpirun", "srun"),
        help="what starts the ranks (default: mpirun; srun in a Slurm job that has no mpirun)",
    )
    parser.add_argument(
        "--restarts",
        type=_not_negative,
        default=0,
        metavar="N",
        help="start the ranks again after a failure, at most N times (default 0)",
    )


def start_or_join(
    args: argparse.Namespace,
    command: Sequence[str],
    join: Callable[[], int],
    again: Callable[[], Sequence[str]] | None = None,
    for_torch: bool = False,
) -> int:
    """Run `join` in this process if it is a rank or the only one, else start ranks of `command`.

    After a failure they are started again up to `args.restarts` times, with the command that
    `again` gives, else with the same. `for_torch`: ranks find what torchrun would tell them, and
    GPUs are left alone, which such programs choose by LOCAL_RANK; `paceline.init` deals them.
    """
    environment = detect()
    keep_compile_cache_private()
    if args.threads:  # what was asked for wins over what the shell has set
        os.environ |= dict.fromkeys(THREAD_VARIABLES, str(args.threads))
    if environment.launched:
        _check_launched(environment, args)
        prepare_job_dir()
        if not for_torch:
            assign_gpus(environment)
        return join()
    if _is_lone_rank(environment, args):
        return join()
    check_folder()
    complete_environment(os.environ)
    launcher = _find_launcher(args)
    plan = _plan(args) if launcher else RankPlan(1, args.threads or available_cores(), Placement())
    if plan.ranks == 1 and not plan.placement.hosts and not args.restarts:
        os.environ |= {"PACELINE_RANKS": "1", RESTART: "0"}
        with _place_to_meet(plan.placement, for_torch) as told:
            os.environ |= told
            return join()

    if launcher is not None and launcher.kind == "openmpi" and not plan.placement.hosts:
        check_limits(plan.ranks)

    def run(restart: int) -> JobResult:
        words = again() if restart and again is not None else command
        program = (sys.executable, "-m", "paceline", *words)
        for attempt in range(PORTS_TRIED):
            with _place_to_meet(plan.placement, for_torch) as told:
                job = Job(plan.ranks, plan.threads, program, plan.placement, told)
                ended = _start(job, restart, launcher)
            if not ended.port_taken or ended.signalled:
                break
            if attempt + 1 < PORTS_TRIED:
                sys.stderr.write("paceline: starting the ranks again, with another port\n")
        return ended

    ended = run_with_restarts(run, args.restarts)
    if ended.code in _SIGNALLED and ended.signalled and not ended.saved:
        sys.stderr.write(f"paceline: {_SIGNALLED[ended.code]}; all ranks were ended\n")
    return ended.code


def _start(job: Job, restart: int, launcher: Mpirun | None) -> JobResult:
    if launcher is None or (job.ranks == 1 and not job.placement.hosts):
        return start_alone(job, restart)
    return start_ranks(job, restart, launcher)


@contextmanager
def _place_to_meet(placement: Placement, for_torch: bool) -> Iterator[dict[str, str]]:
    """What ranks are told of each other for torch.distributed, while the job runs."""
    if not for_torch:
        yield {}
        return
    counts = ",".join(str(host.slots or 1) for host in placement.hosts)
    with rendezvous_env(placement, os.environ) as told:
        yield {**told, RANKS_PER_HOST: counts}


def _check_launched(environment: Environment, args: argparse.Namespace) -> None:
    """What was asked for must be what the launcher did; ours was given the same words."""
    if args.ranks not in (None, environment.size):
        raise LaunchError(
            f"you said -n {args.ranks}, but {environment.kind} has started {environment.size} "
            "ranks already; leave -n away"
        )
    if (args.hosts or args.hostfile or args.launcher) and "PACELINE_LAUNCHER" not in os.environ:
        raise LaunchError(
            f"{environment.kind} has started the ranks already, where it was told to; leave "
            "--hosts, --hostfile and --launcher away"
        )


def _find_launcher(args: argparse.Namespace) -> Mpirun | None:
    """What starts the ranks; `None` if this process is to be the only one."""
    named = args.hosts or args.hostfile
    if args.ranks == 1 and not named:
        return None
    if args.launcher == "srun":
        return find_srun()
    try:
        return find_mpirun()
    except LaunchError as error:
        if args.launcher is None and shutil.which("srun") and "SLURM_JOB_ID" in os.environ:
            return find_srun()
        if args.ranks or named or args.launcher:
            raise
        if available_cores() > 1:
            sys.stderr.write(f"paceline: one process with all cores, since {error}\n")
        return None


def _plan(args: argparse.Namespace) -> RankPlan:
    hosts: tuple[Host, ...] = ()
    if args.hosts:
        hosts = parse_hosts(args.hosts)
    elif args.hostfile:
        hosts = read_hostfile(Path(args.hostfile))
    return plan_ranks(args.ranks, args.threads, hosts, read_allocation())


def _is_lone_rank(environment: Environment, args: argparse.Namespace) -> bool:
    """Whether this process is the only rank of a job that our launcher starts again if it fails."""
    return RESTART in os.environ and environment.size == 1 and args.ranks in (None, 1)


def _positive(text: str, most: int) -> int:
    digits = text.isascii() and text.isdecimal() and len(text) <= 20
    if not digits or not 1 <= int(text) <= most:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise argparse.ArgumentTypeError(f"{shown!r} is not a number from 1 to {most}")
    return int(text)


def _not_negative(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)
