"""A Keras model's metrics, exact over ranks: their state variables are sums, which add up."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from paceline.core.vectors import Vector
from paceline.frameworks.keras.vectors import write

_log = logging.getLogger("paceline.frameworks")

_KEY = "metric state "
States = Sequence[Vector]


class Metrics:
    """The model's metrics as named sums, and the figures computed from them."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._owners = [metric for metric in self._parts() for _ in metric.variables]
        self._odd: set[int] | None = None

    @property
    def unsure(self) -> bool:
        """Whether there are metrics whose states must be tested before they are summed."""
        return self._odd is None and any(not _is_known(m) for m in self._parts())

    def try_out(self, whole: States, parts: Sequence[States]) -> None:
        """Drop metrics whose state for a batch is not the sum of those for its parts."""
        self._odd = set()
        for at, (all_in_one, *cut) in enumerate(zip(whole, *parts, strict=True)):
            total = np.sum([np.asarray(piece, np.float64) for piece in cut], axis=0)
            if not np.allclose(total, all_in_one, rtol=1e-3, atol=1e-5):
                self._odd.add(id(self._owners[at]))
        for name in {m.name for m in self._owners if id(m) in self._odd}:
            _log.warning(
                "metric %s is omitted: its state is not a sum over samples, so the ranks' states "
                "cannot be combined",
                name,
            )

    def sums(self, states: States) -> dict[str, Any]:
        """By name, without the omitted ones."""
        odd = self._odd or set()
        return {
            f"{_KEY}{at}": np.asarray(state, np.float64)
            for at, (owner, state) in enumerate(zip(self._owners, states, strict=True))
            if id(owner) not in odd
        }

    def figures(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """The metrics of these sums, by their names in Keras."""
        variables = self._model.metrics_variables
        for at, variable in enumerate(variables):
            known = sums.get(f"{_KEY}{at}")
            zeros = np.zeros(tuple(variable.shape))
            values = zeros if known is None else np.asarray(known).reshape(zeros.shape)
            write(variable, values.astype(str(keras.backend.standardize_dtype(variable.dtype))))
        left_out = {m.name for at, m in enumerate(self._owners) if f"{_KEY}{at}" not in sums}
        found = self._model.get_metrics_result()
        self._model.reset_metrics()
        found.pop("loss", None)
        return {
            name: _plain(value)
            for name, value in found.items()
            if value.ndim == 0 and not any(_is_of(name, metric) for metric in left_out)
        }

    def _parts(self) -> list[Any]:
        """The metrics in the model's own list, compiled ones taken apart."""
        found: list[Any] = []
        for metric in self._model.metrics:
            found += getattr(metric, "metrics", None) or [metric]
        return found


def _is_of(name: str, metric: str) -> bool:
    """With several outputs, the output's name comes before the metric's."""
    return name == metric or name.endswith(f"_{metric}")


def _is_known(metric: Any) -> bool:
    """All of Keras' own metrics keep sums."""
    return type(metric).__module__.startswith("keras.")


def _plain(value: Any) -> float:
    return float(np.asarray(keras.ops.convert_to_numpy(value)))
