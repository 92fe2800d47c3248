"""Optimizers by name: the same lookup, checks and errors for torch, Keras and optax."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.core.suggestions import unknown_name, unknown_settings
from paceline.core.user_code import describe_failure
from paceline.errors import ConfigError


@dataclass(frozen=True)
class NamedOptimizers:
    """A framework's optimizers, and how its arguments relate to settings."""

    kinds: Mapping[str, Callable[..., Any]]
    """Classes or functions by name, in lower case."""
    not_settings: tuple[str, ...] = ()
    """Arguments that are not settings."""
    rate: str = "lr"
    """The framework's argument for the learning rate, which the settings call `lr`."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """Optimizers that cannot be used, and why."""

    def find(self, spec: Mapping[str, Any]) -> NamedOptimizer:
        """Look up `{"name": "adam", "lr": ..., ...}`; the other keys are its own arguments."""
        name = str(spec["name"])
        kind = self.kinds.get(name.lower())
        if kind is None:
            raise ConfigError(unknown_name("optimizer", name, sorted(self.kinds)))
        if why := self.unfit.get(name.lower()):
            raise ConfigError(f"optimizer {name} cannot be used here: {why}")
        given = {
            self._setting(key): value
            for key, value in spec.items()
            if key != "name" and value is not None
        }
        defaults = self._defaults(kind)
        if wrong := unknown_settings(f"optimizer {name}", given, defaults):
            raise ConfigError(wrong)
        arguments = {self.rate if key == "lr" else key: value for key, value in given.items()}
        return NamedOptimizer(name, kind, given, arguments, defaults)

    def _defaults(self, kind: Callable[..., Any]) -> dict[str, Any]:
        """Settings with their defaults."""
        found = inspect.signature(kind).parameters
        return {
            self._setting(key): found[key].default for key in found if key not in self.not_settings
        }

    def _setting(self, argument: str) -> str:
        return "lr" if argument == self.rate else argument


@dataclass(frozen=True)
class NamedOptimizer:
    """An optimizer found by its name, with the settings that were given."""

    name: str
    kind: Callable[..., Any]
    settings: dict[str, Any]
    """With the names of the settings."""
    arguments: dict[str, Any]
    """With the framework's names."""
    defaults: dict[str, Any]

    def make(self, *positional: Any) -> Any:
        """Call it; whatever it objects to is a ConfigError."""
        try:
            return self.kind(*positional, **self.arguments)
        except Exception as error:  # each checks its settings in its own way
            raise ConfigError(f"optimizer {self.name}: {describe_failure(error)}") from error
