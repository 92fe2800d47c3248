"""From YAML, flags and Python to one RunConfig; all that is wrong is told at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from paceline.config.run import DataConfig, OptimizerConfig, RunConfig, as_number
from paceline.config.safe_yaml import MOST_BYTES, load_yaml, show
from paceline.config.schedules import Constant, Cosine, Step
from paceline.config.stopping import StopConfig, parse_target
from paceline.core.regular_files import open_regular
from paceline.core.suggestions import nearest
from paceline.errors import ConfigError
from paceline.rules import Rule

SHORTHANDS = ("rule", "optimizer", "schedule")
"""Sections that may be given by their name alone: `rule: bsp` is `rule: {name: bsp}`."""


def read_config(*levels: Mapping[str, Any]) -> RunConfig:
    """One config from levels of settings, the later ones winning; all faults reported at once.

    A level that names another optimizer, rule or schedule forgets the settings that lower levels
    gave to the old one.
    """
    merged: dict[str, Any] = {}
    for level in levels:
        _refuse_odd_keys(level)
        merged = _merge(merged, _spelt_out(level), forget=True)
    schedule = merged.get("schedule")
    if isinstance(schedule, dict):
        schedule.setdefault("name", "constant")
    try:
        config = RunConfig(**merged)
        faults = list(_endless("", config))
    except ValidationError as error:
        faults = [_explain(fault) for fault in _relevant(error.errors())]
    if faults:
        raise ConfigError("; ".join(dict.fromkeys(faults)))
    return config


def combine(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of one level, given one by one: nothing is forgotten, the later ones win."""
    combined: dict[str, Any] = {}
    for layer in layers:
        combined = _merge(combined, _spelt_out(layer), forget=False)
    return combined


def read_yaml(path: Path) -> dict[str, Any]:
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
        raise ConfigError(f"run file {path} is not valid YAML: {_one_line(error)}") from None
    if content in (None, {}):
        raise ConfigError(f"run file {path} is empty; {_NEEDED}")
    if not isinstance(content, dict):
        raise ConfigError(f"run file {path} holds a {type(content).__name__}, expected settings")
    return content


_NEEDED = "it names what is trained, as in model: mnist and data: {train: digits}"


def read_assignment(text: str) -> dict[str, Any]:
    """`section.key=value` as nested settings; the value is read as YAML.

    >>> read_assignment("optimizer.lr=1e-3")
    {'optimizer': {'lr': 0.001}}
    """
    path, equals, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise ConfigError(f"--set {show(text)} is not of the form section.key=value")
    try:
        setting: Any = as_number(load_yaml(value))
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--set {_named(path)}: the value {show(value)} is not valid YAML: {_one_line(error)}"
        ) from None
    for key in reversed(keys):
        setting = {key: setting}
    return dict(setting)


def _refuse_odd_keys(level: Mapping[str, Any]) -> None:
    """YAML reads `on` and `1` as other things than text, and Python has no keyword for them."""
    sections = [("", level), *((key, value) for key, value in level.items())]
    for section, settings in sections:
        for key in settings if isinstance(settings, Mapping) else ():
            if not isinstance(key, str):
                place = f" in {section}" if section else ""
                raise ConfigError(
                    f"the key {show(key)}{place} is a {type(key).__name__}, expected a name"
                )


def _endless(name: str, value: Any) -> Iterator[str]:
    """What is wrong with numbers that are none, or beyond all use. What they are for may differ
    from rule to rule and from optimizer to optimizer: none works with these."""
    if name in _NOT_SETTINGS:
        return
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{name} is {value}, expected: a finite number"
    elif isinstance(value, int) and abs(value) >= _TOO_LARGE:
        yield f"{name} is {show(value)}, expected: a number below 2**63"
    for key, item in _items(value):
        yield from _endless(f"{name}.{key}" if name else key, item)


_NOT_SETTINGS = ("model", "loss", "data.train", "data.validation")
"""Those that may be the thing itself, with numbers of its own."""
_TOO_LARGE = 2**63


def _items(value: Any) -> list[tuple[str, Any]]:
    """The settings within a section, or the values within a setting."""
    if isinstance(value, OptimizerConfig):
        return list(value.settings().items())
    if isinstance(value, StopConfig) and value.target is not None:
        return [*value, ("target", parse_target(value.target)[2])]
    if isinstance(value, BaseModel):
        return list(value)
    if isinstance(value, Rule):
        return list(vars(value).items())
    if isinstance(value, dict):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, tuple | list):
        return [(str(place), item) for place, item in enumerate(value)]
    return []


def _spelt_out(layer: Mapping[str, Any]) -> dict[str, Any]:
    """`rule: bsp` as `rule: {name: bsp}`."""
    short = {key: {"name": value} for key, value in layer.items() if isinstance(value, str)}
    return dict(layer) | {key: short[key] for key in SHORTHANDS if key in short}


def _merge(base: Mapping[str, Any], layer: Mapping[str, Any], forget: bool) -> dict[str, Any]:
    merged = dict(base)
    for key, value in layer.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            renamed = "name" in value and value["name"] != old.get("name", value["name"])
            merged[key] = dict(value) if renamed and forget else _merge(old, value, forget)
        else:
            merged[key] = dict(value) if isinstance(value, Mapping) else value
    return merged


_SECTIONS: dict[str, type[BaseModel]] = {
    "data": DataConfig,
    "optimizer": OptimizerConfig,
    "stop": StopConfig,
    "constant": Constant,
    "step": Step,
    "cosine": Cosine,
}


_ELSEWHERE = {"lr": "optimizer.lr", "momentum": "optimizer.momentum"} | {
    name: f"{section}.{name}"
    for section in ("data", "stop")
    for name in _SECTIONS[section].model_fields
}
"""Settings that people look for on the top level, and where they are."""


def _relevant(faults: list[Any]) -> list[Any]:
    """Of an optimizer that is neither settings nor a function, what is wrong with the settings."""
    named = {fault["loc"][:1] for fault in faults if fault["loc"][-1:] != ("callable",)}
    return [f for f in faults if f["loc"][-1:] != ("callable",) or f["loc"][:1] not in named]


def _explain(fault: Any) -> str:
    """One sentence: which key, what it is, what was expected."""
    kinds = ("OptimizerConfig", "callable", *(["str"] if fault["loc"][:1] == ("loss",) else []))
    place = [str(part) for part in fault["loc"] if part not in kinds]
    section = next((_SECTIONS[part] for part in reversed(place[:-1]) if part in _SECTIONS), None)
    name = ".".join(part for part in place if part not in ("constant", "step", "cosine"))
    if fault["type"] == "extra_forbidden":
        valid = list((section or RunConfig).model_fields)
        near = nearest(place[-1], valid)
        prefix = name.rpartition(".")[0]
        hint = f"did you mean {prefix + '.' if prefix else ''}{near}? " if near else ""
        if name in _ELSEWHERE:
            hint = f"did you mean {_ELSEWHERE[name]}? "
        return f"{_named(name)} is not a setting; {hint}(valid here: {', '.join(valid)})"
    if place == ["optimizer"]:
        return (
            f"optimizer is a {type(fault['input']).__name__}, expected a name, settings "
            "({name: ..., lr: ...}) or a function of the parameters"
        )
    if fault["type"] == "union_tag_invalid":
        return f"{name}.name is {show(fault['ctx']['tag'])}, expected constant, step or cosine"
    message = fault["msg"].removeprefix("Value error, ")
    if message.startswith(("rule", "stop.")):
        return _one_line(message)
    return f"{_named(name)} is {show(fault['input'])}, expected: {_expectation(message)}"


def _named(key: str) -> str:
    """A key as it is, unless it would spoil the message."""
    return key if key.isprintable() and len(key) <= 100 else show(key)


def _one_line(text: Any) -> str:
    """Not much longer than the longest of our own messages."""
    words = " ".join(str(text).split())
    return words if len(words) <= 1000 else f"{words[:1000]}..."


def _expectation(message: str) -> str:
    return message.removeprefix("Input should be ").split(", unable to")[0]
