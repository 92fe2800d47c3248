"""Benchmarks: one module each, which says how it is called and measures rows.

A module here names its ranks' functions by text (`<name>_ranks.py`) and imports neither torch nor
MPI: the command line loads all of them to list them.
"""

from __future__ import annotations

import argparse
from typing import Protocol

from paceline.tools.bench import allreduce, ddp, link, memory, scaling, server, step
from paceline.tools.bench.rows import Row


class Bench(Protocol):
    """What a benchmark's module has."""

    NAME: str
    HELP: str

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add its own options; those that all share are there."""

    def measure(self, args: argparse.Namespace) -> list[Row]:
        """Measure with these options, showing progress on stderr."""


BENCHES: tuple[Bench, ...] = (allreduce, step, ddp, scaling, server, link, memory)
"""All of them; a new one is a module and a word here."""
