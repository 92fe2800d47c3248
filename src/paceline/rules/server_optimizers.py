"""Optimizers of a centre: the pushes are their gradients, and the formulas are torch.optim's."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt

from paceline.core.chunks import pieces
from paceline.core.suggestions import unknown_name, unknown_settings
from paceline.core.vectors import Vector
from paceline.errors import ConfigError
from paceline.rules.base import State
from paceline.rules.checks import check_number

_BELOW_ONE = ("momentum", "rho", "alpha", "beta1", "beta2")


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer(ABC):
    """One step for each push that arrives, on any piece of the centre."""

    name: ClassVar[str]
    vectors: ClassVar[tuple[str, ...]] = ()
    """What it keeps for each element."""

    lr: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            fraction = field.name in _BELOW_ONE
            name, value = f"server_optimizer.{field.name}", getattr(self, field.name)
            check_number(name, value, above=None if fraction else 0, below=1 if fraction else None)

    def begin(self, size: int, dtype: npt.DTypeLike) -> State:
        """The state before the first step, for a piece of so many elements."""
        return {name: np.zeros(size, dtype) for name in self.vectors}

    def step(self, vector: Vector, gradient: Vector, state: State) -> None:
        """Move vector and state, in place; the gradient is used up."""
        for piece in pieces(vector.size):
            part = {name: state[name][piece] for name in self.vectors}
            self._move(vector[piece], gradient[piece], {**state, **part})

    @abstractmethod
    def _move(self, vector: Vector, gradient: Vector, state: State) -> None:
        """The step of a piece."""


@dataclass(frozen=True, kw_only=True)
class SGD(ServerOptimizer):
    """p <- p - lr g; with lr 1 the centre takes each push as it is."""

    name: ClassVar[str] = "sgd"
    lr: float = 1.0

    def _move(self, vector: Vector, gradient: Vector, state: State) -> None:
        if self.lr != 1.0:
            gradient *= self.lr
        vector -= gradient


@dataclass(frozen=True, kw_only=True)
class Momentum(ServerOptimizer):
    """v <- momentum v + g,  p <- p - lr v. Polyak 1964, doi:10.1016/0041-5553(64)90137-5."""

    name: ClassVar[str] = "momentum"
    vectors: ClassVar[tuple[str, ...]] = ("velocity",)
    lr: float = 0.1
    momentum: float = 0.9

    def _move(self, vector: Vector, gradient: Vector, state: State) -> None:
        velocity = state["velocity"]
        velocity *= self.momentum
        velocity += gradient
        np.multiply(velocity, self.lr, out=gradient)
        vector -= gradient


@dataclass(frozen=True, kw_only=True)
class Adagrad(ServerOptimizer):
    """s <- s + g^2,  p <- p - lr g / (sqrt(s) + eps). Duchi et al. 2011, JMLR 12."""

    name: ClassVar[str] = "adagrad"
    vectors: ClassVar[tuple[str, ...]] = ("squares",)
    lr: float = 0.01
    eps: float = 1e-10

    def _move(self, vector: Vector, gradient: Vector, state: State) -> None:
        squares = state["squares"]
        squares += gradient * gradient
        _divide(gradient, squares, self.eps)
        gradient *= self.lr
        vector -= gradient


@dataclass(frozen=True, kw_only=True)
class Adadelta(ServerOptimizer):
    """s <- rho s + (1 - rho) g^2,  d = sqrt(u + eps) / sqrt(s + eps) g,
    u <- rho u + (1 - rho) d^2,  p <- p - lr d. Zeiler 2012, arXiv:1212.5701."""

    name: ClassVar[str] = "adadelta"
    vectors: ClassVar[tuple[str, ...]] = ("squares", "changes")
    lr: float = 1.0
    rho: float = 0.9
    eps: float = 1e-6

    def _move(self, vector: Vector, gradient: Vector, state: State) -> None:
        squares, changes = state["squares"], state["changes"]
        _fade_in_square(squares, gradient, self.rho)
        ratio = changes + self.eps
        ratio /= squares + self.eps
        gradient *= np.sqrt(ratio, out=ratio)
        _fade_in_square(changes, gradient, self.rho)
        gradient *= self.lr
        vector -= gradient


@dataclass(frozen=True, kw_only=True)
class RMSprop(ServerOptimizer):
    """s <- alpha s + (1 - alpha) g^2,  p <- p - lr g / (sqrt(s) + eps). Tieleman, Hinton 2012."""

    name: ClassVar[str] = "rmsprop"
    vectors: ClassVar[tuple[str, ...]] = ("squares",)
    lr: float = 0.001
    alpha: float = 0.99
    eps: float = 1e-8

    def _move(self, vector: Vector, gradient: Vector, state: State) -> None:
        _fade_in_square(state["squares"], gradient, self.alpha)
        _divide(gradient, state["squares"], self.eps)
        gradient *= self.lr
        vector -= gradient


@dataclass(frozen=True, kw_only=True)
class Adam(ServerOptimizer):
    """m <- beta1 m + (1 - beta1) g,  s <- beta2 s + (1 - beta2) g^2, and in step t
    p <- p - lr / (1 - beta1^t) m / (sqrt(s / (1 - beta2^t)) + eps).
    Kingma, Ba 2015, arXiv:1412.6980."""

    name: ClassVar[str] = "adam"
    vectors: ClassVar[tuple[str, ...]] = ("mean", "squares")
    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def begin(self, size: int, dtype: npt.DTypeLike) -> State:
        return {**super().begin(size, dtype), "count": np.zeros(1, dtype)}

    def step(self, vector: Vector, gradient: Vector, state: State) -> None:
        state["count"] += 1
        super().step(vector, gradient, state)

    def _move(self, vector: Vector, gradient: Vector, state: State) -> None:
        mean, squares, count = state["mean"], state["squares"], float(state["count"][0])
        _fade_in_square(squares, gradient, self.beta2)
        gradient -= mean
        gradient *= 1.0 - self.beta1
        mean += gradient
        # lr / a * m / (sqrt(s) / b + eps) is lr * b / a * m / (sqrt(s) + b * eps)
        root = (1.0 - self.beta2**count) ** 0.5
        gradient[:] = mean
        _divide(gradient, squares, self.eps * root)
        gradient *= self.lr * root / (1.0 - self.beta1**count)
        vector -= gradient


SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    kind.name: kind for kind in (SGD, Momentum, Adagrad, Adadelta, RMSprop, Adam)
}


def make_server_optimizer(spec: str | Mapping[str, object]) -> ServerOptimizer:
    """From its name, or from `{"name": ..., setting: value, ...}`.

    >>> make_server_optimizer({"name": "momentum", "lr": 0.5})
    Momentum(lr=0.5, momentum=0.9)
    """
    settings = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in SERVER_OPTIMIZERS:
        raise ConfigError(unknown_name("rule.server_optimizer", name, SERVER_OPTIMIZERS))
    kind = SERVER_OPTIMIZERS[name]
    known = [field.name for field in dataclasses.fields(kind)]
    if wrong := unknown_settings(f"rule.server_optimizer {name}", settings, known):
        raise ConfigError(wrong)
    return kind(**cast(dict[str, float], settings))  # each checks that they are numbers


def _fade_in_square(average: Vector, values: Vector, keep: float) -> None:
    """average <- keep average + (1 - keep) values^2."""
    average *= keep
    square = values * values
    square *= 1.0 - keep
    average += square


def _divide(gradient: Vector, squares: Vector, eps: float) -> None:
    """gradient <- gradient / (sqrt(squares) + eps)."""
    root = np.sqrt(squares)
    root += eps
    gradient /= root
