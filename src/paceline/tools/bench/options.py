"""Options that several benchmarks have."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


def at_least(least: int) -> Callable[[str], int]:
    """A type for argparse: whole numbers from `least` on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {least} or more")
        return int(text)

    return read


def add_counts(parser: argparse.ArgumentParser, default: Sequence[int], least: int = 1) -> None:
    """`-n 2 4`: the numbers of ranks to measure with."""
    parser.add_argument(
        "-n",
        "--ranks",
        nargs="+",
        type=at_least(least),
        default=tuple(default),
        metavar="N",
        help=f"numbers of ranks (default: {' '.join(map(str, default))})",
    )


def add_names(
    parser: argparse.ArgumentParser, option: str, names: Sequence[str], what: str
) -> None:
    """`--networks cnn mlp`: some of these; None if none is named."""
    parser.add_argument(
        option,
        nargs="+",
        choices=names,
        metavar="NAME",
        help=f"{what}, of {', '.join(names)} (default: all)",
    )


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    """Options of every benchmark; one that needs another number of rounds has set it before."""
    usual = parser.get_default("rounds") or "5, with --quick 2"
    parser.add_argument("--json", metavar="FILE", help="write the rows as a JSON list")
    parser.add_argument("--plot", metavar="FILE", help="draw the rows (.svg, .png or .pdf)")
    parser.add_argument(
        "--rounds",
        type=at_least(1),
        metavar="K",
        help=f"times that every contestant runs; the best counts (default: {usual})",
    )
    parser.add_argument("--quick", action="store_true", help="small cases, to check that it works")


def default_rounds(args: argparse.Namespace) -> None:
    """Fill in the default, which depends on another option."""
    if args.rounds is None:
        args.rounds = 2 if args.quick else 5
