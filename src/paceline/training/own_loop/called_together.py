"""What the ranks of a `keep_pace` block call together, between two steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.comm import World
from paceline.errors import ConfigError, ReplicaError, TrainingError
from paceline.frameworks.replica import Loop
from paceline.rules import Rule
from paceline.sync.interface import Exchange
from paceline.sync.replicas import average_buffers, check_equal
from paceline.training.loop.stepper import Stepper
from paceline.training.own_loop.state import load_loop, save_loop
from paceline.training.session import shards_of


class CalledTogether(ABC):
    """Of a Pace: what waits for all ranks."""

    world: World
    _loop: Loop
    _rule: Rule
    _exchange: Exchange
    _stepper: Stepper
    _begun: int
    _resumed = False
    """Whether the loop goes on; maybe it was at its end."""

    @abstractmethod
    def _make_exchange(self, world: World) -> Exchange:
        """All ranks of a world make it together."""

    @abstractmethod
    def _together(self, work: Callable[[], None]) -> None:
        """What all ranks do together; again, if ranks are lost meanwhile."""

    def average_buffers(self) -> None:
        """Make BatchNorm-like statistics the mean over all ranks, so that all see the same model in
        a validation inside of the block; all ranks call it together."""
        with self._stepper.watched():
            self._together(lambda: average_buffers(self.world, self._loop, self._exchange.trains))

    def save(self, path: str | Path, **more: Any) -> None:
        """Write the state of the loop to a file: weights, optimizer, random numbers, the place in
        what `shard` returned, and `more` plain values of yours. All ranks call it together, between
        two steps; rank 0 writes."""
        self._refuse_unequal("save")
        with self._stepper.watched():
            self._together(lambda: self._save(Path(path), more))

    def _save(self, path: Path, more: dict[str, Any]) -> None:
        self.world.barrier()  # nobody's step is under way
        save_loop(self.world, self._loop, shards_of(self.world), path, more)

    def load(self, path: str | Path) -> dict[str, Any] | None:
        """Go on from what `save` wrote: returns the values that you had added; None, and nothing
        changes, if there is no such file. All ranks call it together, before the first step."""
        self._refuse_unequal("load")
        if self._begun:
            raise TrainingError("pace.load came after a step; call it first in the block")
        self._exchange.close()
        found = load_loop(self.world, self._loop, shards_of(self.world), Path(path))
        self._exchange = self._make_exchange(self.world)
        self._stepper.change(self.world.rank, self._exchange)
        self._resumed = found is not None
        return found

    def _refuse_unequal(self, what: str) -> None:
        if not self._exchange.replicas_stay_equal:
            raise ConfigError(
                f"pace.{what} is for rule bsp, whose replicas are equal, and the rule is "
                f"{self._rule.name}; paceline.Trainer saves and resumes runs of every rule"
            )

    def check(self) -> None:
        """Compare a hash of the parameters over all ranks; an error if they differ."""
        self._together(lambda: check_equal(self.world, self._loop))

    def _check_together(self) -> None:
        """Replicas that took the same steps are equal, unless something else moved them."""
        try:
            check_equal(self.world, self._loop)
        except ReplicaError as error:
            raise TrainingError(
                f"{error}. What ranks change by hand is not exchanged: let optimizer.step() make "
                "updates from gradients, and make other changes alike on all ranks"
            ) from None
