"""From YAML, flags and Python to one RunConfig; all errors are reported at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import ValidationError

from paceline.config.faults import explain, find_useless_numbers
from paceline.config.messages import one_line, show, show_key
from paceline.config.optimizer import as_number
from paceline.config.run import RunConfig
from paceline.config.safe_yaml import MOST_BYTES, load_yaml
from paceline.core.regular_files import open_regular
from paceline.errors import ConfigError

SHORTHANDS = ("rule", "optimizer", "schedule")
"""Sections that may be given by their name alone: `rule: bsp` is `rule: {name: bsp}`."""


def read_config(*levels: Mapping[str, object]) -> RunConfig:
    """One config from levels of settings, where later ones win; all errors are reported at once.

    A level that names another optimizer, rule or schedule drops the settings that lower levels
    gave to the old one.
    """
    merged: dict[str, object] = {}
    for level in levels:
        _refuse_odd_keys(level)
        merged = _merge(merged, _spelt_out(level), drop=True)
    schedule = merged.get("schedule")
    if isinstance(schedule, dict):
        schedule.setdefault("name", "constant")
    try:
        config = RunConfig(**merged)
        faults = find_useless_numbers(config)
    except ValidationError as error:
        faults = explain(error)
    if faults:
        raise ConfigError("; ".join(dict.fromkeys(faults)))
    return config


def combine(*layers: Mapping[str, object]) -> dict[str, object]:
    """Settings of one level, given one by one: later ones win, and nothing is dropped."""
    combined: dict[str, object] = {}
    for layer in layers:
        combined = _merge(combined, _spelt_out(layer), drop=False)
    return combined


def read_yaml(path: Path) -> dict[str, object]:
    """The settings in a YAML file."""
    try:
        with open_regular(path) as file:
            content = load_yaml(file.read(MOST_BYTES + 1).decode())
    except FileNotFoundError:
        raise ConfigError(f"run file {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"run file {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # not UTF-8, or a name that no file can have
        raise ConfigError(f"run file {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"run file {path} is not valid YAML: {one_line(error)}") from None
    if content in (None, {}):
        raise ConfigError(f"run file {path} is empty; {_NEEDED}")
    if not isinstance(content, dict):
        raise ConfigError(f"run file {path} holds a {type(content).__name__}, expected settings")
    return content


_NEEDED = "it names what is trained, as in model: mnist and data: {train: digits}"


def read_assignment(text: str) -> dict[str, object]:
    """`section.key=value` as nested settings; the value is read as YAML.

    >>> read_assignment("optimizer.lr=1e-3")
    {'optimizer': {'lr': 0.001}}
    """
    path, equals, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise ConfigError(f"--set {show(text)} is not of the form section.key=value")
    try:
        setting = as_number(load_yaml(value))
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--set {show_key(path)}: the value {show(value)} is not valid YAML: {one_line(error)}"
        ) from None
    return nest(".".join(keys), setting)


def nest(key: str, value: object) -> dict[str, object]:
    """A setting by its dotted key as nested settings.

    >>> nest("data.batch_size", 8)
    {'data': {'batch_size': 8}}
    """
    first, dot, rest = key.partition(".")
    return {first: nest(rest, value) if dot else value}


def _refuse_odd_keys(level: Mapping[str, object]) -> None:
    """YAML reads `on` and `1` as a bool and a number, which no setting is called."""
    sections = [("", level), *((key, value) for key, value in level.items())]
    for section, settings in sections:
        for key in settings if isinstance(settings, Mapping) else ():
            if not isinstance(key, str):
                place = f" in {show_key(section)}" if section else ""
                raise ConfigError(
                    f"the key {show(key)}{place} is a {type(key).__name__}, expected a name"
                )


def _spelt_out(layer: Mapping[str, object]) -> dict[str, object]:
    """`rule: bsp` as `rule: {name: bsp}`."""
    short = {key: {"name": value} for key, value in layer.items() if isinstance(value, str)}
    return dict(layer) | {key: short[key] for key in SHORTHANDS if key in short}


def _merge(
    base: Mapping[str, object], layer: Mapping[str, object], drop: bool
) -> dict[str, object]:
    """Both, where `layer` wins; with `drop` another name replaces a whole section."""
    merged = dict(base)
    for key, value in layer.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            renamed = "name" in value and value["name"] != old.get("name", value["name"])
            merged[key] = dict(value) if renamed and drop else _merge(old, value, drop)
        else:
            merged[key] = dict(value) if isinstance(value, Mapping) else value
    return merged
