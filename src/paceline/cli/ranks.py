"""How many ranks a command gets, and who starts them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from paceline.errors import LaunchError
from paceline.launch.cores import available_cores, threads_per_rank
from paceline.launch.environment import Environment, detect
from paceline.launch.local import Job, find_mpirun, start

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


def start_or_join(args: argparse.Namespace, command: Sequence[str], join: Callable[[], int]) -> int:
    """Run `join` in this process if it is a rank or the only one, else start ranks of `command`."""
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
    ranks = args.ranks if args.ranks is not None else _default_ranks(environment)
    if ranks == 1:
        os.environ["PACELINE_RANKS"] = "1"
        return join()
    threads = args.threads or threads_per_rank(ranks, available_cores())
    code = start(Job(ranks, threads, (sys.executable, "-m", "paceline", *command)))
    if code in _SIGNALLED:
        sys.stderr.write(f"paceline: {_SIGNALLED[code]}; all ranks were ended\n")
    return code


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
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
