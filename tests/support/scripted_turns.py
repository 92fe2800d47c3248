"""Asynchronous training made deterministic: who takes the next step is written down beforehand."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import torch

import paceline
from paceline.comm import run_world

RATE = 0.1
TARGETS = np.array([[1.0, -1.0, 2.0], [3.0, 5.0, -2.0], [-2.0, 0.5, 4.0]], np.float32)
"""Each worker is drawn to a point of its own."""


class Turns:
    """Lets the ranks go on in the order that a script says."""

    def __init__(self, script):
        self._script, self._at, self._changed = list(script), 0, threading.Condition()

    @contextmanager
    def turn(self, rank):
        with self._changed:
            mine = self._changed.wait_for(
                lambda: self._at < len(self._script) and self._script[self._at] == rank, 20
            )
            assert mine, f"rank {rank} waited too long at {self._at} of {self._script}"
        try:
            yield
        finally:
            with self._changed:
                self._at += 1
                self._changed.notify_all()


def play(rule, script, ranks=3, nodes=None, exchange=None):
    """Train by the script; each step's replica after it, in the script's order, and the result.

    `nodes` pretends that the ranks are on several.
    """
    turns, course = Turns(script), [None] * len(script)

    def program(world):
        if nodes is not None:
            world.node_ranks = next(node for node in nodes if world.rank in node)
        model = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        mine = [at for at, rank in enumerate(script) if rank == world.rank]
        with paceline.keep_pace(model, optimizer, rule=rule, exchange=exchange, world=world):
            for at in mine:
                with turns.turn(world.rank):
                    target = torch.from_numpy(TARGETS[world.rank : world.rank + 1])
                    optimizer.zero_grad()
                    ((model.weight - target) ** 2 / 2).sum().backward()
                    optimizer.step()
                    course[at] = model.weight.detach().numpy()[0].copy()
        return model.weight.detach().numpy()[0].copy()

    results = run_world(ranks, program)
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    return np.array(course), results[0]
