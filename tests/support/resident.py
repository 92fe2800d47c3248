"""The resident world: ranks under one mpirun that call one function after another, as asked.

    mpirun -n 4 python resident.py SOCKET FOLDER

Every rank connects to the socket of `support.resident_job`, sleeps until a line with a call comes,
and answers with a line: what the function returned, or its traceback. When the socket is closed,
the rank ends. What it prints goes to FOLDER/output-RANK.
"""

from __future__ import annotations

import contextlib
import contextvars
import faulthandler
import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paceline
from paceline.runtime import world as launch_world

PROGRAMS = Path(__file__).parents[1] / "mpi" / "programs"
WHERE = signal.SIGRTMIN + 5
"""Lets a rank print the stacks of its threads; nothing else takes this signal."""


def main(address: str, folder: str) -> None:
    world = paceline.init()
    output = os.open(f"{folder}/output-{world.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    faulthandler.register(WHERE, all_threads=True)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        lines = line.makefile("rw", encoding="utf-8")
        answer(lines, {"rank": world.rank, "pid": os.getpid()})
        for call in map(json.loads, lines):
            part = world.split(int(world.rank < call["ranks"]))
            if world.rank < call["ranks"]:
                answer(lines, carry_out(part, call["function"], call["arguments"]))
    gc.freeze()  # Python looks at everything that torch has made before it ends: 1 s a rank


def answer(lines: Any, value: dict[str, Any]) -> None:
    lines.write(json.dumps(value) + "\n")
    lines.flush()


def carry_out(world: Any, function: str, arguments: list[Any]) -> dict[str, Any]:
    """What to answer to a call; an error ends the job, and so need not be one of all ranks."""
    try:
        # What belongs to a program, such as the number of its exchanges, is kept in a context.
        value = contextvars.Context().run(call_in, world, function, arguments)
        return {"value": json.loads(json.dumps(value))}
    except BaseException:
        return {"error": traceback.format_exc()}
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def call_in(world: Any, function: str, arguments: list[Any]) -> Any:
    with joined(world):
        return find(function)(world, *arguments)


def find(function: str) -> Any:
    """`module:function`; programs of tests/mpi/programs are modules, too."""
    if str(PROGRAMS) not in sys.path:
        sys.path.append(str(PROGRAMS))
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


@contextlib.contextmanager
def joined(world: Any) -> Iterator[None]:
    """Let this be the world that `paceline.init()` gives, and the one torch's groups are made in,
    as in a job of just these ranks."""
    whole, launch_world._joined = launch_world._joined, world
    variables = dict(os.environ)
    try:
        yield
    finally:
        launch_world._joined = whole
        os.environ.clear()
        os.environ.update(variables)
        backend = sys.modules.get("paceline.torch_backend.joined")
        if backend is not None:
            backend._joined = None


if __name__ == "__main__":
    main(*sys.argv[1:])
