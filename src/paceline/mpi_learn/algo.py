"""Algo: mpi_learn's training settings, translated into Paceline's own rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.core.suggestions import did_you_mean, unknown_name
from paceline.errors import ConfigError

_SERVER_SETTINGS: dict[str, dict[str, tuple[str, float]]] = {
    "sgd": {"learning_rate": ("lr", 0.01)},
    "adadelta": {"rho": ("rho", 0.95), "epsilon": ("eps", 1e-8)},
    "rmsprop": {
        "learning_rate": ("lr", 0.001),
        "rho": ("alpha", 0.9),
        "epsilon": ("eps", 1e-8),
    },
    "adam": {
        "learning_rate": ("lr", 0.001),
        "beta_1": ("beta1", 0.9),
        "beta_2": ("beta2", 0.999),
        "epsilon": ("eps", 1e-8),
    },
}
"""The master's optimizers: mpi_learn's name of a setting, ours, and mpi_learn's default."""

_OPTIONS: dict[str, Any] = {
    "loss": "binary_crossentropy",
    "validate_every": None,
    "sync_every": 1,
    "mode": "sgd",
    "worker_optimizer": "sgd",
    "worker_optimizer_params": None,
    "elastic_force": None,
    "elastic_lr": None,
    "elastic_momentum": 0.0,
}
_MODES = {"sgd": "downpour", "downpour": "downpour", "easgd": "easgd"}
_LOCAL_LR = 0.05
"""The rate of workers that take local steps: Paceline's own default for sgd."""


class Algo:
    """The details of the training algorithm.

        Algo("adam", loss="categorical_crossentropy", sync_every=1, learning_rate=0.001)
        Algo(None, loss="mse", mode="easgd", sync_every=10, elastic_lr=0.05, elastic_momentum=0.9)

    `optimizer` is the master's: sgd, adadelta, rmsprop or adam; its settings are further keywords.
    `validate_every` counts updates of the master (0: no validation; by default every epoch is
    validated). `elastic_lr` is the rate of the workers' sgd, 1.0 where each push is one gradient,
    that is for mode sgd and `sync_every` 1, and 0.05 otherwise.
    """

    supported_opts = _OPTIONS

    def __init__(self, optimizer: str | None = None, **options: Any) -> None:
        settings = {name: options.pop(name, usual) for name, usual in _OPTIONS.items()}
        self.mode: str = settings["mode"]
        if self.mode not in _MODES:
            raise ConfigError(unknown_name("mode", self.mode, _MODES))
        self.loss: Any = settings["loss"]
        self.validate_every: int | None = settings["validate_every"]
        self.sync_every: int = settings["sync_every"]
        self.worker_optimizer: str = settings["worker_optimizer"]
        self.worker_optimizer_params: dict[str, Any] = settings["worker_optimizer_params"] or {}
        self.elastic_force: float | None = settings["elastic_force"]
        self.elastic_lr: float | None = settings["elastic_lr"]
        self.elastic_momentum: float = settings["elastic_momentum"]
        self.optimizer_name = optimizer
        self.server_optimizer = self._read_server(optimizer, options)

    def __str__(self) -> str:
        names = (name for name in _OPTIONS if getattr(self, name) not in (None, {}))
        lines = [f"{name}: {getattr(self, name)}" for name in names]
        return "\n".join([f"optimizer: {self.optimizer_name}", *lines])

    def _read_server(self, name: str | None, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """The master's optimizer as settings of Paceline; every keyword must be known."""
        elastic = _MODES[self.mode] == "easgd"
        if not elastic and name not in _SERVER_SETTINGS:
            raise ConfigError(unknown_name("optimizer", name, _SERVER_SETTINGS))
        takes = {} if elastic else _SERVER_SETTINGS[str(name)]
        for unknown in given:
            if unknown not in takes:
                raise ConfigError(_explain_unknown(unknown, None if elastic else name, list(takes)))
        if elastic:
            return None
        values = {ours: given.get(theirs, usual) for theirs, (ours, usual) in takes.items()}
        return {"name": name, **values}

    def rule(self, synchronous: bool = False) -> dict[str, Any]:
        """The rule's settings.

        >>> Algo("sgd", sync_every=2).rule()["push_every"]
        2
        """
        place = {"synchronous": True} if synchronous else {}
        if _MODES[self.mode] == "easgd":
            force = {} if self.elastic_force is None else {"force": self.elastic_force}
            return {"name": "easgd", "every": self.sync_every, **force, **place}
        pace = {"push_every": self.sync_every, "pull_every": self.sync_every}
        return {"name": "downpour", "server_optimizer": self.server_optimizer, **pace, **place}

    def optimizer(self) -> dict[str, Any]:
        """The settings of the workers' own optimizer.

        >>> Algo("adam").optimizer()
        {'name': 'sgd', 'lr': 1.0, 'momentum': 0.0}
        """
        named = {"name": self.worker_optimizer}
        further = {_ours(name): value for name, value in self.worker_optimizer_params.items()}
        momentum, lr = self.elastic_momentum, self.elastic_lr
        if self.worker_optimizer == "sgd":
            pushes_gradients = _MODES[self.mode] == "downpour" and self.sync_every == 1
            usual = 1.0 if pushes_gradients else _LOCAL_LR
            nesterov = {"nesterov": True} if momentum else {}
            rate = usual if lr is None else lr
            return {**named, "lr": rate, "momentum": float(momentum), **nesterov, **further}
        rate_given = {} if lr is None else {"lr": lr}
        momentum_given = {"momentum": momentum} if momentum else {}
        return {**named, **rate_given, **momentum_given, **further}


def _ours(name: str) -> str:
    return "lr" if name == "learning_rate" else name


def _explain_unknown(name: str, optimizer: str | None, takes: list[str]) -> str:
    if optimizer is None:
        owner, valid = "mode easgd has no master's optimizer, so Algo", list(_OPTIONS)
    else:
        owner, valid = f"Algo with optimizer {optimizer}", [*_OPTIONS, *takes]
    hint = did_you_mean(name, valid)
    return f"{owner} has no option {name}; it takes: {', '.join(valid)}{hint}"
