"""The flags of `paceline train`: added to a parser, and read back as settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from paceline.config.run import RunConfig
from paceline.config.setting import Flag, Setting, describe_settings

SETTINGS = describe_settings(RunConfig)
"""Every setting of a run."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags and positional arguments of all settings, in groups."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for setting in SETTINGS:
        flag = setting.flag
        if flag is None or flag.of_launcher:
            continue
        if flag.is_positional:
            parser.add_argument(setting.key, nargs="?", metavar=flag.name, help=help_of(setting))
            continue
        if setting.group not in groups:
            groups[setting.group] = parser.add_argument_group(setting.group.lower())
        groups[setting.group].add_argument(
            flag.name, dest=setting.key, help=help_of(setting), **_options(setting, flag)
        )


def read_flags(args: argparse.Namespace) -> dict[str, object]:
    """The settings that were given by flags and positional arguments, by their dotted keys."""
    given = {s.key: getattr(args, s.key, None) for s in SETTINGS if s.flag is not None}
    return {key: value for key, value in given.items() if value is not None}


def help_of(setting: Setting) -> str:
    """The line beside a flag: what it means, what to choose from, and the default.

    >>> print(help_of(next(s for s in SETTINGS if s.key == "data.batch_size")))
    samples per rank and step (default 64)
    """
    text = _lower_first(setting.summary).replace("`", "")
    if not setting.default_in_words and bool not in setting.types:
        notes = [", ".join(setting.names)] if setting.names else []
        if setting.default is not None:
            notes.append(f"default {default_of(setting)}")
        text += f" ({'; '.join(notes)})" if notes else ""
    return text.replace("%", "%%")


def default_of(setting: Setting) -> str:
    """The default as YAML would have it.

    >>> default_of(next(s for s in SETTINGS if s.key == "data.shuffle"))
    'true'
    """
    value = getattr(setting.default, "name", setting.default)  # a rule is known by its name
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _options(setting: Setting, flag: Flag) -> dict[str, Any]:
    """How argparse reads the flag's value; whether it is valid is for the config to say."""
    if setting.types == {bool}:
        return {"action": "store_const", "const": True}
    options: dict[str, Any] = {"type": _reader(setting)}
    usual = {int: "N", float: "X"}.get(options["type"], flag.name.strip("-").upper())
    options["metavar"] = flag.metavar or usual
    if flag.const is not None:
        options |= {"nargs": "?", "const": flag.const}
    return options


def _reader(setting: Setting) -> Callable[[str], object]:
    if {int, str} <= setting.types:
        return _number_or_text
    return next((kind for kind in (int, float) if kind in setting.types), str)


def _number_or_text(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _lower_first(text: str) -> str:
    """For the style of argparse: acronyms stay as they are."""
    first = text.split(" ")[0].rstrip(":,;")
    return text[:1].lower() + text[1:] if len(first) == 1 or first[1:].islower() else text
