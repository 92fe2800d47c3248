"""Unit tests start no process."""

from __future__ import annotations

import multiprocessing.process
import multiprocessing.util
import os
import subprocess
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from support.one_thread import keep_torch_to_one_thread

STARTERS = (
    (subprocess.Popen, "__init__"),
    (multiprocessing.process.BaseProcess, "start"),
    (multiprocessing.util, "spawnv_passfds"),
    *((os, name) for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system")),
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    keep_torch_to_one_thread()


@pytest.fixture(autouse=True)
def no_process() -> Iterator[None]:
    """Whoever starts a process fails, even where its errors are caught or in another thread."""
    refused: list[str] = []

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        what = options.get("args", arguments[-1] if arguments else "fork")
        refused.append(f"unit tests start no process: tests/process is the place for {what!r}")
        pytest.fail(refused[-1])

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STARTERS:
            patch.setattr(owner, name, refuse)
        yield
    assert not refused, refused[0]
