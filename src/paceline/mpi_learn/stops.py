"""When to stop early: mpi_learn's `early_stopping` and `target_metric` as settings of ours."""

from __future__ import annotations

from typing import Any

from paceline.errors import ConfigError

_METRICS = {"val_acc": "val_accuracy", "val_accuracy": "val_accuracy", "val_loss": "val_loss"}


def read_stops(early_stopping: Any, target_metric: Any) -> dict[str, Any]:
    """The settings of `stop`.

    >>> read_stops("val_loss,~<,4", ("val_acc", ">", 0.97))
    {'patience': 4, 'target': 'val_accuracy>0.97'}
    """
    stops: dict[str, Any] = {}
    if early_stopping is not None:
        stops["patience"] = _read_patience(early_stopping)
    if target_metric is not None:
        stops["target"] = _read_target(target_metric)
    return stops


def _read_patience(given: Any) -> int:
    """From a number, or from `val_loss,<,4` or `val_loss,~<,4`."""
    words = _split(given)
    if len(words) == 1:
        words = ["val_loss", "<", *words]
    if len(words) == 3 and words[0] == "val_loss" and words[1] in ("<", "~<"):
        number = words[2].removesuffix(".0")
        if number.isdecimal() and int(number) > 0:
            return int(number)
    raise ConfigError(
        f"early_stopping is {given!r}, expected a number of validations without a lower val_loss, "
        "as 4 or val_loss,<,4"
    )


def _read_target(given: Any) -> str:
    words = _split(given)
    if len(words) == 3 and words[0] in _METRICS and words[1] in ("<", ">"):
        return f"{_METRICS[words[0]]}{words[1]}{words[2]}"
    raise ConfigError(
        f"target_metric is {given!r}, expected METRIC,>,NUMBER or METRIC,<,NUMBER with a metric "
        f"of: {', '.join(_METRICS)}"
    )


def _split(given: Any) -> list[str]:
    parts = given if isinstance(given, tuple | list) else str(given).split(",")
    return [str(part).strip() for part in parts]
