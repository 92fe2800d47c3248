"""Benchmarks: one module each, with its name, its options and the measurement of its rows.

A module here names the function of its ranks (in `ranks/`) as text and imports neither torch nor
MPI: the command line loads all modules to list them.
"""

from __future__ import annotations

import argparse
from typing import Protocol

from paceline.tools.bench import allreduce, ddp, link, memory, scaling, server, step, uneven
from paceline.tools.bench.rows import Row


class Bench(Protocol):
    """The names in a benchmark's module."""

    NAME: str
    HELP: str

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add its own options; the shared ones are there already."""

    def measure(self, args: argparse.Namespace) -> list[Row]:
        """Measure with these options, showing progress on stderr."""


BENCHES: tuple[Bench, ...] = (allreduce, step, ddp, scaling, server, link, memory, uneven)
"""All of them; a new one is a module and an entry here."""
