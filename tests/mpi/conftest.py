"""Fixtures for tests under real mpirun."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.resident_job import ResidentJob


@pytest.fixture(scope="session")
def resident() -> Iterator[ResidentJob]:
    """`resident(3, "module:function", argument)`: what `function(world, argument)` returns on rank
    0 of 3, in a job that stays for the whole session. For programs that end normally."""
    job = ResidentJob()
    yield job
    job.close()


@pytest.fixture
def own_job(mpirun) -> Callable[..., Any]:
    """The same call, in a job of just these ranks that is started for it."""

    def call(ranks: int, function: str, *arguments: Any, timeout_s: float = 100) -> Any:
        words = (function, json.dumps(arguments, default=str))
        done = mpirun(ranks, "call.py", *words, timeout_s=timeout_s)
        assert done.returncode == 0, done.stderr
        return json.loads(re.search(r"VALUE (.*)", done.stdout)[1])

    return call
