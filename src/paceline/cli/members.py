"""`paceline join`, `leave` and `scale`: change the ranks of a run while it trains."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.rank_options import MOST_RANKS, positive

if TYPE_CHECKING:
    from paceline.training.membership.requests import MembershipRequest

_SILENCE_S = 60.0
"""How long a job may take to notice a request: it looks ten times a second, if it lives."""
_LOOK_EVERY_S = 0.1


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    join = _add(commands, "join", "Let more ranks join a run that was started with --elastic.")
    _add_count(join, "how many (default 1, or those of --hosts)")
    _add_hosts(join)
    join.set_defaults(function=_join)
    leave = _add(commands, "leave", "Let ranks leave a run that was started with --elastic.")
    who = leave.add_mutually_exclusive_group(required=True)
    who.add_argument("--rank", type=int, nargs="+", metavar="R", help="these ranks")
    who.add_argument("--host", nargs="+", metavar="H", help="all ranks on these machines")
    leave.set_defaults(function=_leave)
    scale = _add(commands, "scale", "Let ranks join or leave a run until it has this many.")
    _add_count(scale, "how many there are to be", required=True)
    _add_hosts(scale)
    scale.set_defaults(function=_scale)


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, description=f"{text} The command returns when it is done; see docs/reliability.md."
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the directory of the run")
    return parser


def _add_count(parser: argparse.ArgumentParser, text: str, required: bool = False) -> None:
    count = partial(positive, most=MOST_RANKS)
    parser.add_argument("-n", "--ranks", type=count, metavar="N", required=required, help=text)


def _add_hosts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hosts",
        metavar="A:2,B",
        help="machines for those that join, each with a number of ranks (default 1); by default "
        "MPI finds a place on those of the run",
    )


def _join(args: argparse.Namespace, given: list[str]) -> int:
    from paceline.errors import ConfigError
    from paceline.training.membership.requests import MembershipRequest

    hosts = _read_hosts(args.hosts)
    if hosts and args.ranks not in (None, len(hosts)):
        raise ConfigError(f"-n is {args.ranks}, and --hosts names {len(hosts)}; give one of them")
    return _ask(args.run, MembershipRequest("join", len(hosts) or args.ranks or 1, hosts))


def _leave(args: argparse.Namespace, given: list[str]) -> int:
    from paceline.training.membership.requests import MembershipRequest

    return _ask(
        args.run, MembershipRequest("leave", 0, tuple(args.host or ()), tuple(args.rank or ()))
    )


def _scale(args: argparse.Namespace, given: list[str]) -> int:
    from paceline.training.membership.requests import MembershipRequest

    return _ask(args.run, MembershipRequest("scale", args.ranks, _read_hosts(args.hosts)))


def _read_hosts(text: str | None) -> tuple[str, ...]:
    from paceline.cluster.hosts import parse_hosts

    hosts = parse_hosts(text) if text is not None else ()
    return tuple(host.name for host in hosts for _ in range(host.slots or 1))


def _ask(run_dir: Path, request: MembershipRequest) -> int:
    """Ask the job, and show its answers until one is final."""
    from paceline.training.membership.requests import Inquiry

    inquiry, said, since = Inquiry(run_dir, request), None, time.monotonic()
    try:
        while True:
            answer = inquiry.answer()
            if answer is None and time.monotonic() - since > _SILENCE_S:
                sys.stderr.write(
                    f"paceline: the job of {run_dir} has not answered for {_SILENCE_S:.0f} s; is "
                    "it still running?\n"
                )
                return 1
            if answer is not None and answer.text != said:
                said = answer.text
                stream = sys.stderr if answer.is_refused else sys.stdout
                stream.write(f"{'paceline: ' * answer.is_refused}{said}\n")
                stream.flush()
            if answer is not None and answer.is_final:
                return int(answer.is_refused)
            time.sleep(_LOOK_EVERY_S)
    finally:
        inquiry.withdraw()
