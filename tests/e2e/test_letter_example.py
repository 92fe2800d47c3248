"""A program for the processes of one node, and the same on MPI: three lines, and equal losses."""

from __future__ import annotations

import ast
import difflib

import pytest
from support.letter import EXAMPLES, MANY, ONE, losses, losses_of_gloo, shorten


def difference() -> list[str]:
    one, many = ((EXAMPLES / name).read_text().splitlines() for name in (ONE, MANY))
    return list(difflib.unified_diff(one, many, ONE, MANY, lineterm=""))


def changed(sign: str) -> list[str]:
    """The lines that came (+) or went (-), without those that are empty."""
    return [line for line in difference()[2:] if line[0] == sign and line[1:].strip()]


def function(name: str, file: str) -> str:
    text = (EXAMPLES / file).read_text()
    found = [node for node in ast.parse(text).body if getattr(node, "name", "") == name]
    return str(ast.get_source_segment(text, found[0]))


def test_three_lines_are_new_and_none_of_the_loop():
    assert len(changed("+")) == 3
    for name in ("run", "average_gradients"):
        assert function(name, ONE) == function(name, MANY)


def test_the_page_shows_the_difference_as_it_is():
    page = (EXAMPLES.parent / "docs" / "from-one-node-to-many.md").read_text()
    assert "```diff\n" + "\n".join(difference()) + "\n```" in page
    assert f"{len(changed('+'))} lines are new, {len(changed('-'))} are gone" in page


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_losses_are_those_of_gloo(paceline, tmp_path, ranks):
    gloo = losses_of_gloo(ranks, tmp_path)
    done = paceline("run", "-n", str(ranks), "--", shorten(MANY, tmp_path), timeout_s=140)
    assert done.returncode == 0, done.stderr
    assert len(gloo) == 2
    assert losses(done.stdout) == gloo
