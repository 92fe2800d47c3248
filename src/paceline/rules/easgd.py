"""Elastic averaging SGD: replicas and a centre that pull each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from paceline.core.chunks import pieces
from paceline.core.vectors import Vector
from paceline.errors import ConfigError
from paceline.rules.base import CentreRule, PushTerms, Rule, State, WeightRule
from paceline.rules.checks import check_flag, check_number, check_whole

_BETA = 0.9


@dataclass(frozen=True, kw_only=True)
class EASGD(CentreRule):
    """Pull each replica and the centre towards each other, every so many steps.

    With the move m = a (x - c):  x <- x - m,  c <- c + m,  so that x + c is conserved. The force a
    is `force`, or `beta` / workers; with `final_force` it goes there in a straight line over a
    worker's first `final_after` steps. Zhang et al. 2015, arXiv:1412.6651. With momentum in the
    worker's optimizer (nesterov) it is that paper's EAMSGD. With `synchronous` all p workers
    exchange at once, every `every` steps:  c <- (1 - p a) c + p a mean(x).

    >>> rule, x, c, message = EASGD(force=0.25), np.array([4.0]), np.array([0.0]), np.empty(1)
    >>> terms = rule.terms(step=10, steps=10, workers=3)
    >>> rule.make_push(x, {}, terms, out=message)
    >>> rule.absorb(message, c, {}, terms)
    >>> rule.apply_reply(message, x, x, {})
    >>> x, c
    (array([3.]), array([1.]))
    """

    name: ClassVar[str] = "easgd"
    trivial_alone: ClassVar[bool] = True
    reply_kind: ClassVar[Literal["move", "centre"]] = "move"

    every: int = 10
    force: float | None = None
    beta: float | None = None
    final_force: float | None = None
    final_after: int | None = None
    synchronous: bool = False

    def __post_init__(self) -> None:
        check_whole("every", self.every, least=1)
        _check_force("force", self.force)
        _check_force("final_force", self.final_force)
        _check_beta(self.beta)
        check_flag("synchronous", self.synchronous)
        if self.force is not None and self.beta is not None:
            raise ConfigError(
                f"rule.force is {self.force} and rule.beta {self.beta}, expected one of them: "
                "the force is beta / workers"
            )
        if (self.final_force is None) != (self.final_after is None):
            raise ConfigError(
                f"rule.final_force is {self.final_force} and rule.final_after {self.final_after}, "
                "expected both or neither: the force at last, and after how many steps"
            )
        if self.final_after is not None:
            check_whole("final_after", self.final_after, least=1)

    def resolve(self, *, lossy: bool) -> Rule:
        """When all workers exchange at once, the centre is a sum over them."""
        return _SynchronousEASGD(elastic=self, every=self.every) if self.synchronous else self

    def check_workers(self, workers: int) -> None:
        force = self.force_at(0, workers)
        if force >= 1:
            raise ConfigError(
                f"the elastic force is {force:g} for {workers} worker{'s' * (workers > 1)}, "
                "expected less than 1: replica and centre would only change places; set a lower "
                "rule.beta"
            )

    def force_at(self, step: int, workers: int) -> float:
        """The force of a worker's exchange after that many of its steps.

        >>> rule = EASGD(force=0.5, final_force=0.1, final_after=100)
        >>> [round(rule.force_at(step, workers=4), 6) for step in (0, 50, 100, 900)]
        [0.5, 0.3, 0.1, 0.1]
        """
        beta = _BETA if self.beta is None else self.beta
        start = beta / workers if self.force is None else self.force
        if self.final_force is None or self.final_after is None:
            return start
        return start + (self.final_force - start) * min(1.0, step / self.final_after)

    def due(self, step: int) -> tuple[bool, bool]:
        now = step % self.every == 0
        return now, now

    def terms(self, step: int, steps: int, workers: int) -> PushTerms:
        return PushTerms(force=self.force_at(step, workers), steps=steps)

    def make_push(self, replica: Vector, state: State, terms: PushTerms, out: Vector) -> None:
        out[:] = replica

    def absorb(self, push: Vector, centre: Vector, state: State, terms: PushTerms) -> None:
        for piece in pieces(push.size):
            move = push[piece]
            move -= centre[piece]
            move *= terms.force
            centre[piece] += move

    def apply_reply(self, reply: Vector, before: Vector, replica: Vector, state: State) -> None:
        replica -= reply

    def exchange_in_place(
        self, replica: Vector, centre: Vector, terms: PushTerms, out: Vector
    ) -> bool:
        np.subtract(replica, centre, out=out)
        np.multiply(out, terms.force, out=out)
        np.add(centre, out, out=centre)
        np.subtract(replica, out, out=replica)
        return True


@dataclass(frozen=True, kw_only=True)
class _SynchronousEASGD(WeightRule):
    """All workers exchange with the centre at once:  x <- x - a (x - c),  c <- c + a sum(x - c)."""

    name: ClassVar[str] = EASGD.name
    trivial_alone: ClassVar[bool] = EASGD.trivial_alone
    weighted_by_samples: ClassVar[bool] = False

    elastic: EASGD
    every: int

    def init_state(self, replica: Vector) -> State:
        return {"centre": replica.copy(), "rounds": np.zeros(1, replica.dtype)}

    def contribute(self, replica: Vector, state: State, weight: float, out: Vector) -> None:
        np.subtract(replica, state["centre"], out=out)

    def merge(self, total: Vector, weight: float, replica: Vector, state: State) -> None:
        """Here the weight is the number of workers."""
        centre, rounds = state["centre"], state["rounds"]
        rounds += 1
        force = self.elastic.force_at(int(rounds[0]) * self.every, round(weight))
        replica -= centre  # x <- c + (1 - a)(x - c) needs no other vector
        replica *= 1.0 - force
        replica += centre
        total *= force
        centre += total

    def centre(self, state: State) -> Vector:
        return state["centre"]


def _check_force(name: str, value: object) -> None:
    try:
        if value is not None:
            check_number(name, value, above=0, below=1)
    except ConfigError as error:
        raise ConfigError(f"{error}. Try {_BETA} / workers") from None


def _check_beta(value: object) -> None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
    if value is not None and not fits:
        raise ConfigError(f"rule.beta is {value!r}, expected 0 < beta <= 1. The usual is {_BETA}")
