"""Checks of a rule's settings, in the words of the user."""

from __future__ import annotations

from paceline.errors import ConfigError


def check_whole(name: str, value: object, least: int) -> None:
    """A whole number, not below `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"rule.{name} is {value!r}, expected a whole number of {least} or more")


def check_flag(name: str, value: object) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"rule.{name} is {value!r}, expected true or false")


def check_number(name: str, value: object, above: float | None, below: float | None) -> None:
    """A number strictly between these, or not below 0 where `above` is None."""
    fits = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (value > above if above is not None else value >= 0)
        and (below is None or value < below)
    )
    if not fits:
        least = f"{above:g} < " if above is not None else "0 <= "
        most = f" < {below:g}" if below is not None else ""
        raise ConfigError(f"rule.{name} is {value!r}, expected {least}{name}{most}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """One of these words."""
    if value not in choices:
        raise ConfigError(f"rule.{name} is {value!r}, expected one of: {', '.join(choices)}")


def refuse_if_synchronous(**settings: object) -> None:
    """Name the settings that a synchronous rule would ignore."""
    unused = [f"rule.{name}" for name, value in settings.items() if value is not None]
    if unused:
        raise ConfigError(
            f"rule.synchronous is true and {', '.join(unused)} set, which has no effect when all "
            "workers exchange at once; omit it, or set rule.synchronous=false"
        )
