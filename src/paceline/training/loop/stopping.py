"""When to stop before the last epoch: decided from figures that all ranks share, so all agree."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from paceline.config.stopping import StopConfig, parse_target

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class Stopping:
    """Watches the figures of each epoch and says why to stop, or None."""

    def __init__(self, config: StopConfig) -> None:
        self._config = config
        self._best = float("inf")
        self._waited = 0

    def snapshot(self) -> dict[str, float]:
        """What it has seen so far."""
        return {"best": self._best, "waited": self._waited}

    def restore(self, saved: Mapping[str, float]) -> None:
        """Go on from what `snapshot` gave."""
        self._best, self._waited = saved["best"], int(saved["waited"])

    def reason(self, figures: Mapping[str, float | None]) -> str | None:
        if self._config.target is not None:
            metric, comparison, bar = parse_target(self._config.target)
            value = figures.get(metric)
            if value is not None and _COMPARISONS[comparison](value, bar):
                return f"target reached: {metric} is {value:.4f}, wanted {comparison} {bar:g}"
        loss = figures.get("val_loss")
        if self._config.patience is None or loss is None:
            return None
        self._waited = 0 if loss < self._best else self._waited + 1
        self._best = min(self._best, loss)
        if self._waited >= self._config.patience:
            return f"val_loss has not fallen below {self._best:.4f} for {self._waited} validations"
        return None
