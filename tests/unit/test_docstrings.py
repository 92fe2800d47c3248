"""The examples in the docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

import paceline

STARTS_SOMETHING = {"paceline.comm.mpi", "paceline.__main__"}
MODULES = [
    module.name
    for module in pkgutil.walk_packages(paceline.__path__, "paceline.")
    if module.name not in STARTS_SOMETHING
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    found = [
        test
        for name in MODULES
        for test in finder.find(importlib.import_module(name))
        if test.examples
    ]
    assert len(found) >= 10
