"""The examples in the docstrings run."""

import doctest
import importlib
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parent


def name_module(file: Path) -> str:
    parts = ("paceline", *file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = [name_module(file) for file in sorted(ROOT.rglob("*.py")) if ">>> " in file.read_text()]
"""Those with examples, found without importing them."""


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0
    assert found.attempted > 0


def test_there_are_examples():
    assert len(MODULES) >= 80
