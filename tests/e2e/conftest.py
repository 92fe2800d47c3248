"""Fixtures for tests of the command."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support import commands


@pytest.fixture
def paceline(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`paceline("train", "mnist", "-n", "2")`: the command; at a time limit its ranks end, too."""

    def run(
        *words: object, cwd: Path = tmp_path, timeout_s: float = 110, **changes: str
    ) -> subprocess.CompletedProcess[str]:
        return commands.run(*words, cwd=cwd, timeout_s=timeout_s, **changes)

    return run


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The demo, with a summary: the folder it ran in, and what it said."""
    folder = tmp_path_factory.mktemp("demo")
    words = ("train", "mnist", "-n", "2", "--epochs", "1", "--summary", "out/s.json")
    return folder, commands.run(*words, cwd=folder, timeout_s=110)
