"""Inject faults into a run, at a chosen rank and step."""

from __future__ import annotations

import itertools
import logging
import math
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from paceline.comm import Buffer, Pending, World
from paceline.data import Batch
from paceline.errors import ConfigError
from paceline.frameworks import Replica
from paceline.frameworks.replica import scale_gradients
from paceline.testing.faults import Fault
from paceline.training.callbacks import Callback, Logs

if TYPE_CHECKING:
    from paceline.training.own_loop.pace import Pace
    from paceline.training.trainer import Trainer

_SILENCE_S = 3600.0
_PIECE_S = 0.1
"""How soon a silent rank notices that the others were ended."""

_AFTER = ("exception", "exit", "sigkill", "sigstop", "hang", "disk-full")
_Places = dict[str, tuple[Any, str]]
"""For moments: what this process calls then."""

_log = logging.getLogger("paceline.testing")


class Inject(Callback):
    """Injects faults into a run: `Trainer(..., callbacks=[Inject(Fault("nan", 1, step=5))])`.

    Each occurs once, on its rank, and is logged. After the step:

    - `exception` raises a RuntimeError, `exit` exits with `code`;
    - `sigkill` and `sigstop` send this process that signal (a sigkill also at other moments);
    - `hang`: this process does nothing more, until it is ended;
    - `disk-full`: this process can no longer write to files. It sets the limit of file sizes to
      0, so the error is EFBIG ("File too large"), not ENOSPC; what is already written stays, and
      pipes and memory are not affected.

    In the step:

    - `nan`: the loss of the batch is NaN;
    - `delay` sleeps for `seconds` before the step, and before those that follow with `steps`;
    - `drop`: the first message that this rank sends in the step is lost. If it sends none (sums
      and barriers are MPI's, or in the node's memory), the rank falls silent after the step
      instead, as if its messages were lost.

    Steps are those of the rank itself, so only ranks that train have faults; with `at=serving` a
    step is a request that a rank serves as it holds a piece of a centre. A run that resumes
    from a checkpoint before the step has the fault again. In an elastic run a rank keeps its
    number here, whoever is lost.
    """

    def __init__(self, *faults: Fault) -> None:
        self._faults = faults
        self._trap: _Trap | None = None
        self._ranks: dict[int, int] = {}

    def attach(self, pace: Pace) -> None:
        """Inject them into a loop of your own: `with keep_pace(...) as pace:
        Inject(Fault("sigkill", 1, step=5)).attach(pace)`."""
        rank, stepper = pace.world.rank, pace._stepper
        before, after = stepper.before, stepper.after
        for fault in self._faults:
            if fault.at in ("validation", "saving", "serving", "pushing"):
                raise ConfigError(f"fault {fault}: a loop of your own has no {fault.at} of ours")

        def due(*kinds: str) -> list[Fault]:
            return _due(self._faults, rank, pace.progress()[1], kinds)

        def before_step(*arguments: Any) -> Any:
            for fault in due("nan", "delay", "drop", "sigkill"):
                if fault.at == "after" and fault.kind == "sigkill":
                    continue
                _log.warning("injecting %s", fault)
                if fault.kind == "nan":
                    scale_gradients(pace._loop, math.nan)
                elif fault.kind == "delay":
                    time.sleep(fault.seconds)
                elif fault.kind == "drop":
                    self._trap = _Trap(pace.world)
                else:
                    exchange: Any = pace._exchange
                    moves = getattr(exchange, "_optimizer", None)
                    places = {"recovery": (exchange, "settle"), "end": (pace, "_end")}
                    _strike_at(fault, places | {"moving": (moves, "step")})
            return before(*arguments)

        def after_step(*arguments: Any, **named: Any) -> Any:
            found = after(*arguments, **named)
            trap, self._trap = self._trap, None
            if trap is not None and not trap.close():
                _fall_silent(pace.world)
            for fault in due(*_AFTER):
                if fault.at == "after":
                    _log.warning("injecting %s", fault)
                    _strike(fault)
            return found

        vars(stepper).update(before=before_step, after=after_step)

    def on_train_begin(self, trainer: Trainer) -> None:
        self._ranks[id(trainer)] = rank = trainer.world.rank
        for fault in self._faults:
            if fault.rank == rank and fault.at == "serving":
                _strike_serving(fault, trainer)

    def on_batch_begin(self, trainer: Trainer, step: int) -> None:
        for fault in self._due(trainer, step, ("nan", "delay", "drop")):
            if step == fault.step:
                _log.warning("injecting %s", fault)
            if fault.kind == "nan":
                _spoil_loss(trainer.replica)
            elif fault.kind == "delay":
                time.sleep(fault.seconds)
            else:
                self._trap = _Trap(trainer.world)
        for fault in self._due(trainer, step, ("sigkill",)):
            if fault.at not in ("after", "serving"):
                _log.warning("injecting %s", fault)
                _strike_at(fault, _places(trainer))

    def on_batch_end(self, trainer: Trainer, step: int, logs: Logs) -> None:
        trap, self._trap = self._trap, None
        if trap is not None and not trap.close():
            _fall_silent(trainer.world)
        for fault in self._due(trainer, step, _AFTER):
            if fault.at == "after":
                _log.warning("injecting %s", fault)
                _strike(fault)

    def _due(self, trainer: Trainer, step: int, kinds: tuple[str, ...]) -> list[Fault]:
        rank = self._ranks.get(id(trainer), trainer.world.rank)
        return _due(self._faults, rank, step, kinds)


def _due(faults: tuple[Fault, ...], rank: int, step: int, kinds: tuple[str, ...]) -> list[Fault]:
    here = (fault for fault in faults if fault.rank == rank)
    due = (f for f in here if f.step <= step < f.step + f.steps)
    return [fault for fault in due if fault.kind in kinds]


def _strike(fault: Fault) -> None:
    if fault.kind == "exception":
        raise RuntimeError(f"injected on rank {fault.rank} after step {fault.step}")
    if fault.kind == "exit":
        sys.exit(fault.code)
    if fault.kind == "hang":
        time.sleep(_SILENCE_S)
        raise RuntimeError(f"rank {fault.rank} hung for {_SILENCE_S:.0f} s and nobody ended it")
    if fault.kind == "disk-full":
        _refuse_files()
    else:
        number = signal.SIGKILL if fault.kind == "sigkill" else signal.SIGSTOP
        os.kill(os.getpid(), number)


def _places(trainer: Trainer) -> _Places:
    run: Any = trainer._training_run
    return {
        "moving": (getattr(run.exchange, "_optimizer", None), "step"),
        "validation": (run.replica, "evaluate"),
        "saving": (run.saver, "add"),
        "recovery": (run, "settle"),
        "end": (run, "end"),
        "pushing": (run.world, "isend"),
    }


def _strike_at(fault: Fault, places: _Places) -> None:
    """Strike where this process gets to at that moment; moving, after a part of it."""
    place, name = places.get(fault.at, (None, ""))
    if place is None:
        _strike(fault)
        return
    _strike_in(place, name, fault, after=2 if fault.at in ("moving", "pushing") else 0)


def _strike_serving(fault: Fault, trainer: Trainer) -> None:
    """Strike when this rank has done what its so many-th request asks, and has not answered."""
    run: Any = trainer._training_run
    server = getattr(getattr(run.exchange, "_centre", None), "server", None)
    if server is not None:
        _strike_in(server, "_take_in", fault, after=fault.step)


def _strike_in(place: Any, name: str, fault: Fault, after: int) -> None:
    """Strike after so many calls of a method; 0: before the next."""
    plain, calls = getattr(place, name), itertools.count(1)

    def struck(*arguments: object) -> object:
        if not after:
            _strike(fault)
        found = plain(*arguments)
        if next(calls) == after:
            _strike(fault)
        return found

    setattr(place, name, struck)


def _refuse_files() -> None:
    """Python itself ignores SIGXFSZ, which would end the process; so a write is an error."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))


def _spoil_loss(replica: Replica) -> None:
    """Make the next loss of the replica NaN."""
    plain = replica.gradients

    def gradients(batch: Batch, weight: float = 1.0, add: bool = False) -> float:
        replica.gradients = plain  # type: ignore[method-assign]
        plain(batch, weight, add)
        return math.nan

    replica.gradients = gradients  # type: ignore[method-assign]


class _Trap:
    """Loses the first message that is sent while it is open."""

    def __init__(self, world: Any) -> None:
        self._world, self._plain = world, world.isend
        self._caught = False
        world.isend = self._isend

    def _isend(self, buffer: Buffer, to: int, tag: int = 0) -> Pending:
        self._world.isend = self._plain
        self._caught = True
        return _Lost(self._world.rank)

    def close(self) -> bool:
        """Stop losing messages; return whether one was lost."""
        self._world.isend = self._plain
        return self._caught


class _Lost:
    """A message that its sender takes for sent."""

    def __init__(self, source: int) -> None:
        self.source = source

    def done(self) -> bool:
        return True

    def cancel(self) -> None:
        """There is nothing to cancel."""


def _fall_silent(world: World) -> None:
    """Do nothing and send nothing until this process is ended."""
    end = time.monotonic() + _SILENCE_S
    while time.monotonic() < end:
        time.sleep(_PIECE_S)
        world.raise_if_failed()
    raise RuntimeError(f"rank {world.rank} was silent for {_SILENCE_S:.0f} s and nobody ended it")
