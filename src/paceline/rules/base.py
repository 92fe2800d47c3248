"""What a rule is: one of four families, by what workers exchange.

A rule is only mathematics: it says what a worker contributes and how contributions are merged. It
sees vectors and numbers, never a communicator, a model or a file. Derive a frozen dataclass from a
family to write your own (docs/own-rule.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.quantities import Period
from paceline.core.vectors import Vector

ExchangeKind = Literal["gradients", "weights", "centre", "gossip"]
"""What workers exchange: it chooses the code that carries the rule out."""

State = dict[str, Vector]
"""Vectors that a rule keeps from one exchange to the next."""


class Rule(ABC):
    """When workers exchange what, and how it is merged."""

    name: ClassVar[str]
    """In settings, messages and records; by default the name of the class."""
    exchange_kind: ClassVar[ExchangeKind]
    trivial_alone: ClassVar[bool] = False
    """Whether a single rank with this rule simply trains."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def resolve(self, *, lossy: bool) -> Rule:
        """The rule to carry out for this one; `lossy` where vectors are rounded on their way."""
        return self

    def check_workers(self, workers: int) -> None:
        """Raise a ConfigError if the rule cannot work with so many workers."""
        return


class GradientRule(Rule):
    """Workers sum their gradients in every step, before the optimizer uses them.

    All methods work on any contiguous piece of the vectors alike.
    """

    exchange_kind: ClassVar[ExchangeKind] = "gradients"

    @abstractmethod
    def contribute(self, gradient: Vector, weight: float, out: Vector) -> None:
        """Write what this worker adds to the sum; a full batch has weight 1. `out` may be the
        gradient itself."""

    @abstractmethod
    def merge(self, total: Vector, weight: float, out: Vector) -> None:
        """Turn the sum of all contributions, and of their weights, into the gradient that the
        optimizer uses. `out` may be the total itself."""

    def accumulate(
        self, gradients: Sequence[Vector], weights: Sequence[float], out: Vector
    ) -> None:
        """Write the sum of contributions, added in their order; `out` is none of them.

        Override it only to do the same faster.
        """
        self.contribute(gradients[0], weights[0], out=out)
        part = np.empty_like(out)
        for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
            self.contribute(gradient, weight, out=part)
            out += part


class WeightRule(Rule):
    """Workers train alone and merge their weights when the period is over, and at the end of every
    epoch."""

    exchange_kind: ClassVar[ExchangeKind] = "weights"
    weighted_by_samples: ClassVar[bool] = True
    """Whether a worker counts by its samples since the last exchange; otherwise each counts as
    1."""
    every: int | str
    """`epoch`, a number of steps, or a time as "10s"."""
    start_after: int = 0
    """Steps at first in which gradients are averaged instead, as in bsp."""
    keep_momentum: bool = True
    """Whether a worker's optimizer keeps its state over an exchange."""
    fragments: int = 1
    """Parts of the vector, of which each exchange merges the next."""

    @property
    def period(self) -> Period:
        return Period.parse(self.every)

    def init_state(self, replica: Vector) -> State:
        """The state before the first exchange, from weights that all workers have in common; it is
        the same on every worker."""
        return {}

    @abstractmethod
    def contribute(self, replica: Vector, state: State, weight: float, out: Vector) -> None:
        """Write what this worker adds to the sum."""

    @abstractmethod
    def merge(self, total: Vector, weight: float, replica: Vector, state: State) -> None:
        """Move replica and state, in place, by the sum of contributions and of their weights."""

    def centre(self, state: State) -> Vector | None:
        """The weights to validate and save, if they are not the replica's own."""
        return None


class PushTerms(NamedTuple):
    """What a worker says with its push."""

    force: float = 0.0
    """Of the elastic pull."""
    scale: float = 1.0
    """By which the push counts; 0: refused."""
    steps: int = 1
    """Local steps behind it."""


class CentreRule(Rule):
    """Workers train asynchronously and exchange with a centre, one at a time.

    An exchange is: the worker writes a push (`make_push`), the centre moves by it (`absorb`), and
    the worker follows what comes back (`apply_reply`). A push may come without a pull and a pull
    without a push; a refused push is not absorbed. All three work on any contiguous piece of the
    vectors alike.
    """

    exchange_kind: ClassVar[ExchangeKind] = "centre"
    reply_kind: ClassVar[Literal["move", "centre"]]
    """What goes back to a worker: the `move` that its push became, or the `centre` itself."""
    every: int = 1

    @property
    def report_every(self) -> int:
        """Steps of a worker between two exchanges, at least."""
        return self.every

    @abstractmethod
    def due(self, step: int) -> tuple[bool, bool]:
        """Whether to push, and to pull, after that many steps of this worker."""

    def terms(self, step: int, steps: int, workers: int) -> PushTerms:
        """For a push after `step` steps in all, `steps` of them since the last push."""
        return PushTerms(steps=steps)

    def staleness_weight(self, staleness: int) -> float:
        """By which a push counts that was computed on a centre so many updates old; 0 refuses."""
        return 1.0

    def init_worker(self, replica: Vector) -> State:
        """What a worker keeps beside its replica: vectors as long as that."""
        return {}

    def init_centre(self, size: int, dtype: npt.DTypeLike) -> State:
        """The centre's optimizer state for a piece of so many elements: arrays of that size, or of
        one element."""
        return {}

    @abstractmethod
    def make_push(self, replica: Vector, state: State, terms: PushTerms, out: Vector) -> None:
        """Write what the worker pushes; its state follows."""

    @abstractmethod
    def absorb(self, push: Vector, centre: Vector, state: State, terms: PushTerms) -> None:
        """Move the centre, in place, by a push; `push` becomes the move where the rule replies with
        that, and is used up otherwise."""

    @abstractmethod
    def apply_reply(self, reply: Vector, before: Vector, replica: Vector, state: State) -> None:
        """Let the replica follow the reply; `before` is the replica as it was when it asked.

        That is the same array, unless the worker went on computing meanwhile: its steps since then
        are kept. The reply is left as it is.
        """

    def recall_centre(self, push: Vector, reply: Vector, terms: PushTerms) -> Vector:
        """The centre as it was after an exchange of this push for this reply: what to go on from if
        the centre is lost. Where the push is not the replica itself, override it."""
        if self.reply_kind == "centre":
            return reply
        return push - self.distance(reply, push, terms) + reply

    def exchange_in_place(
        self, replica: Vector, centre: Vector, terms: PushTerms, out: Vector
    ) -> bool:
        """All three at once, where replica and centre lie in one memory and the worker waits; the
        move is left in `out`. False, and nothing done, if the rule has no faster way."""
        return False

    def distance(self, reply: Vector, before: Vector, terms: PushTerms) -> Vector:
        """How far the replica was from the centre, by a reply; for the event log."""
        if self.reply_kind == "centre":
            return reply - before
        return reply / terms.force if terms.force else reply


class GossipRule(Rule):
    """Workers train asynchronously and push their replicas to random peers."""

    exchange_kind: ClassVar[ExchangeKind] = "gossip"

    @abstractmethod
    def wants_to_push(self, rng: np.random.Generator) -> bool:
        """Whether this step ends with a push."""

    @abstractmethod
    def choose_peer(self, rng: np.random.Generator, rank: int, size: int) -> int:
        """Which of the other ranks gets it."""

    @abstractmethod
    def split_weight(self, weight: float) -> float:
        """What a sender keeps of its weight, and what goes with its replica."""

    @abstractmethod
    def merge(
        self, replica: Vector, weight: float, received: Vector, received_weight: float
    ) -> float:
        """Move the replica, in place, by one received; its new weight."""
