"""The program for one node and the same on MPI, from examples/, shortened for tests."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from paceline.launch.rendezvous import reserve
from support.ranks import run_in_group

EXAMPLES = Path(__file__).parents[2] / "examples"
ONE, MANY = "from_one_node.py", "from_one_node_mpi.py"
EPOCHS = 101
"""Instead of 100,000, for which no test can wait; two losses are printed."""


def shorten(name: str, place: Path, *changes: tuple[str, str]) -> Path:
    """A copy with fewer epochs, and with what else a test must set."""
    text = (EXAMPLES / name).read_text()
    for old, new in (("range(100000)", f"range({EPOCHS})"), *changes):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = place / name
    path.write_text(text)
    return path


def losses(text: str) -> list[str]:
    """The lines with losses, as they were printed."""
    return re.findall(r"^Epoch [\d,]+: \S+$", text, re.MULTILINE)


def losses_of_gloo(ranks: int, place: Path, timeout_s: float = 240) -> list[str]:
    """What the program for one node prints with so many processes of its own."""
    sized = ("size = 2\n", f"size = {ranks}\n")
    with reserve("127.0.0.1") as port:  # the program's store may still open it
        script = shorten(ONE, place, sized, ('"29500"', f'"{port}"'))
        done = run_in_group([sys.executable, script], timeout_s)
    assert done.returncode == 0, done.stderr
    return losses(done.stdout)
