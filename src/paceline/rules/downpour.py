"""Downpour SGD: workers push what they have done to a centre with an optimizer of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from paceline.core.chunks import pieces
from paceline.core.vectors import Vector
from paceline.errors import ConfigError
from paceline.rules.base import CentreRule, PushTerms, Rule, State, WeightRule
from paceline.rules.checks import (
    check_choice,
    check_flag,
    check_whole,
    refuse_if_synchronous,
)
from paceline.rules.mean import take_mean, weigh
from paceline.rules.server_optimizers import ServerOptimizer, make_server_optimizer

_STALENESS = ("none", "agn", "dynsgd")


@dataclass(frozen=True, kw_only=True)
class Downpour(CentreRule):
    """Push the accumulated update to a centre, which takes it as a gradient; pull the centre.

    With b the replica at the last push:  g = b - x,  b <- x;  the centre takes a step of its
    optimizer, with sgd  c <- c - lr g;  and a pull moves x and b by the same:  x <- x + (c - x).
    Dean et al. 2012, "Large Scale Distributed Deep Networks". With `staleness` agn a push is
    divided by the steps behind it (Hermans 2017, arXiv:1710.02368), with dynsgd by the updates
    that the centre has seen since the pull, plus one (Jiang et al. 2017,
    doi:10.1145/3035918.3035933); more than `max_staleness` of them and it is refused. With
    `synchronous` all workers push at once, and the centre takes the mean over samples.

    >>> rule, x, c, message = Downpour(), np.array([4.0]), np.array([4.0]), np.empty(1)
    >>> state, terms = rule.init_worker(x), rule.terms(step=1, steps=1, workers=2)
    >>> x -= 1.0  # a step of this worker
    >>> c -= 0.5  # a push of another
    >>> rule.make_push(x, state, terms, out=message)
    >>> rule.absorb(message, c, {}, terms)
    >>> rule.apply_reply(c, x, x, state)
    >>> x, c
    (array([2.5]), array([2.5]))
    """

    name: ClassVar[str] = "downpour"
    reply_kind: ClassVar[Literal["move", "centre"]] = "centre"

    push_every: int = 1
    pull_every: int = 1
    server_optimizer: str | Mapping[str, object] = "sgd"
    staleness: str = "none"
    max_staleness: int | None = None
    synchronous: bool = False

    def __post_init__(self) -> None:
        check_whole("push_every", self.push_every, least=1)
        check_whole("pull_every", self.pull_every, least=1)
        make_server_optimizer(self.server_optimizer)
        check_choice("staleness", self.staleness, _STALENESS)
        if self.max_staleness is not None:
            check_whole("max_staleness", self.max_staleness, least=0)
        check_flag("synchronous", self.synchronous)
        if self.synchronous:
            self._check_synchronous()

    def _check_synchronous(self) -> None:
        by_age = "dynsgd" if self.staleness == "dynsgd" else None
        refuse_if_synchronous(staleness=by_age, max_staleness=self.max_staleness)
        if self.pull_every % self.push_every:
            raise ConfigError(
                f"rule.pull_every is {self.pull_every} and rule.push_every {self.push_every}, "
                "expected a multiple of it: with rule.synchronous a pull comes with a push"
            )

    @cached_property
    def optimizer(self) -> ServerOptimizer:
        """The optimizer that moves the centre."""
        return make_server_optimizer(self.server_optimizer)

    def resolve(self, *, lossy: bool) -> Rule:
        """When all workers push at once, each can hold the centre itself."""
        if self.synchronous:
            return _SynchronousDownpour(downpour=self, every=self.push_every)
        return self

    @property
    def report_every(self) -> int:
        return min(self.push_every, self.pull_every)

    def due(self, step: int) -> tuple[bool, bool]:
        return step % self.push_every == 0, step % self.pull_every == 0

    def staleness_weight(self, staleness: int) -> float:
        if self.max_staleness is not None and staleness > self.max_staleness:
            return 0.0
        return 1.0 / (staleness + 1) if self.staleness == "dynsgd" else 1.0

    def init_worker(self, replica: Vector) -> State:
        return {"base": replica.copy()}

    def init_centre(self, size: int, dtype: npt.DTypeLike) -> State:
        return self.optimizer.begin(size, dtype)

    def make_push(self, replica: Vector, state: State, terms: PushTerms, out: Vector) -> None:
        self.write_update(replica, state["base"], terms.steps, out)
        state["base"][:] = replica

    def write_update(self, replica: Vector, base: Vector, steps: int, out: Vector) -> None:
        """What the worker has done since its base, as a gradient."""
        np.subtract(base, replica, out=out)
        if self.staleness == "agn" and steps > 1:
            out *= 1.0 / steps

    def absorb(self, push: Vector, centre: Vector, state: State, terms: PushTerms) -> None:
        if terms.scale != 1.0:
            push *= terms.scale
        self.optimizer.step(centre, push, state)

    def apply_reply(self, reply: Vector, before: Vector, replica: Vector, state: State) -> None:
        base = state["base"]
        for piece in pieces(replica.size):
            shift = reply[piece] - before[piece]
            replica[piece] += shift
            base[piece] += shift


@dataclass(frozen=True, kw_only=True)
class _SynchronousDownpour(WeightRule):
    """All workers push at once:  g <- sum(n_i (b_i - x_i)) / sum(n_i),  and c takes one step."""

    name: ClassVar[str] = Downpour.name

    downpour: Downpour
    every: int

    def init_state(self, replica: Vector) -> State:
        rounds = np.zeros(1, replica.dtype)  # since the last pull
        own = {"centre": replica.copy(), "base": replica.copy(), "rounds": rounds}
        return {**own, **self.downpour.init_centre(replica.size, replica.dtype)}

    def contribute(self, replica: Vector, state: State, weight: float, out: Vector) -> None:
        self.downpour.write_update(replica, state["base"], self.every, out)
        weigh(out, weight, out)

    def merge(self, total: Vector, weight: float, replica: Vector, state: State) -> None:
        take_mean(total, weight, out=total)
        self.downpour.optimizer.step(state["centre"], total, state)
        rounds = state["rounds"]
        rounds += 1
        if rounds[0] * self.every >= self.downpour.pull_every:
            rounds[:] = 0
            replica[:] = state["centre"]
        state["base"][:] = replica

    def centre(self, state: State) -> Vector:
        return state["centre"]
