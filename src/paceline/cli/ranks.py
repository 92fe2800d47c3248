"""How many ranks a command gets, and who starts them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from paceline.errors import LaunchError
from paceline.launch.cores import available_cores, threads_per_rank
from paceline.launch.environment import Environment, detect
from paceline.launch.foreground import Ended
from paceline.launch.local import RESTART, Job, find_mpirun, start_alone, start_ranks
from paceline.launch.restarts import run_with_restarts

_SIGNALLED = {130: "interrupted", 143: "terminated"}


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--ranks",
        type=_positive,
        metavar="N",
        help="processes to start (default: the physical cores available; under mpirun or srun "
        "theirs are joined instead)",
    )
    parser.add_argument(
        "--threads",
        type=_positive,
        metavar="T",
        help="threads per rank (default: $OMP_NUM_THREADS, else cores / ranks)",
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
) -> int:
    """Run `join` in this process if it is a rank or the only one, else start ranks of `command`.

    After a failure they are started again up to `args.restarts` times, with the command that
    `again` gives, else with the same.
    """
    environment = detect()
    if args.threads:  # what was asked for wins over what the shell has set
        os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(args.threads))
    if environment.launched:
        if args.ranks not in (None, environment.size):
            raise LaunchError(
                f"you said -n {args.ranks}, but {environment.kind} has started {environment.size} "
                "ranks already; leave -n away"
            )
        return join()
    if _is_lone_rank(environment, args):
        return join()
    ranks = args.ranks if args.ranks is not None else _default_ranks(environment)
    if ranks == 1 and not args.restarts:
        os.environ |= {"PACELINE_RANKS": "1", RESTART: "0"}
        return join()
    threads = args.threads or threads_per_rank(ranks, available_cores())

    def run(restart: int) -> Ended:
        words = again() if restart and again is not None else command
        job = Job(ranks, threads, (sys.executable, "-m", "paceline", *words))
        return (start_alone if ranks == 1 else start_ranks)(job, restart)

    ended = run_with_restarts(run, args.restarts)
    if ended.code in _SIGNALLED and ended.signalled and not ended.saved:
        sys.stderr.write(f"paceline: {_SIGNALLED[ended.code]}; all ranks were ended\n")
    return ended.code


def _is_lone_rank(environment: Environment, args: argparse.Namespace) -> bool:
    """Whether this process is the only rank of a job that our launcher starts again if it fails."""
    return RESTART in os.environ and environment.size == 1 and args.ranks in (None, 1)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def _not_negative(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)


def _default_ranks(environment: Environment) -> int:
    """The tasks of the allocation, else one rank per core; one where no MPI could start more."""
    cores = environment.size if environment.size > 1 else available_cores()
    if cores == 1:
        return 1
    try:
        find_mpirun()
    except LaunchError as error:
        sys.stderr.write(f"paceline: one process with all cores, since {error}\n")
        return 1
    return cores
