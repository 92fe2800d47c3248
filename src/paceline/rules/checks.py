"""Checks of a rule's settings, in the words of the user."""

from __future__ import annotations

from typing import Any

from paceline.errors import ConfigError

WIRES = ("float32", "bfloat16", "float16", "int8")
"""The formats in which vectors travel."""
GRADIENT_WIRES = (*WIRES, "powersgd")
"""Those of gradients: what powersgd leaves out of one, later ones bring."""
_ELSEWHERE = {("wire", "powersgd"): "powersgd is for gradients: rule bsp"}
"""Words that other rules know, and which."""


def check_whole(name: str, value: Any, least: int) -> None:
    """A whole number, not below `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"rule.{name} is {value!r}, expected a whole number of {least} or more")


def check_flag(name: str, value: Any) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"rule.{name} is {value!r}, expected true or false")


def check_number(name: str, value: Any, above: float | None, below: float | None) -> None:
    """A number strictly between these, or not below 0 where `above` is None."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    high_enough = number and (value > above if above is not None else value >= 0)
    if not high_enough or (below is not None and value >= below):
        least = f"{above:g} < " if above is not None else "0 <= "
        most = f" < {below:g}" if below is not None else ""
        raise ConfigError(f"rule.{name} is {value!r}, expected {least}{name}{most}")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """One of these words."""
    if value not in choices:
        known = _ELSEWHERE.get((name, str(value)))
        raise ConfigError(
            f"rule.{name} is {value!r}, expected one of: {', '.join(choices)}"
            + (f"; {known}" if known else "")
        )
