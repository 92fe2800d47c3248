"""The settings of a run: one model, reached alike from YAML, `--set key=value` and Python."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from paceline.errors import ConfigError
from paceline.rules import Rule, make_rule
from paceline.training.schedules import Constant, Cosine, Schedule, Step
from paceline.training.stopping import StopConfig

SHORTHANDS = ("rule", "optimizer", "schedule")
"""Sections that may be given by their name alone: `rule: bsp` is `rule: {name: bsp}`."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class DataConfig(Section):
    """What is trained on."""

    train: Any = None
    """digits, mnist, a .npz or .npy file, file.py:function; in Python also the data itself."""
    validation: Any = None
    """The same; for digits and mnist their test images unless said otherwise."""
    batch_size: int = Field(64, ge=1)
    """Samples per rank and step."""
    validation_batch_size: int = Field(500, ge=1)
    """Samples per rank and validation step."""
    shuffle: bool = True
    prefetch: int | None = Field(None, ge=0)
    """Batches made ready in the background; by default 2, and 0 for arrays in memory."""
    dir: str | None = None
    """Where the full MNIST lies."""
    keys: tuple[str, str] | None = None
    """The names of inputs and targets in a .npz file; by default x and y."""


class OptimizerConfig(BaseModel):
    """The optimizer's name; every other key is a setting of its own (lr, momentum, ...)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "sgd"
    lr: float | None = Field(None, gt=0)

    @field_validator("*", mode="before")
    @classmethod
    def read_number(cls, value: Any) -> Any:
        return _number(value)

    def settings(self) -> dict[str, Any]:
        """Name and settings, with the defaults of plain SGD made useful."""
        given = {key: _number(value) for key, value in self.model_dump(exclude_none=True).items()}
        return {"lr": 0.05, "momentum": 0.9, **given} if self.name.lower() == "sgd" else given


class RunConfig(Section):
    """Everything a run can be told."""

    model: Any = "mnist"
    """A name in `paceline.models`, file.py:function, package.module:function; in Python also a
    module or a function."""
    data: DataConfig = DataConfig()
    rule: Rule = Field(default_factory=lambda: make_rule("bsp"))
    optimizer: OptimizerConfig | Callable[..., Any] = OptimizerConfig()
    schedule: Annotated[Schedule, Field(discriminator="name")] = Constant()
    loss: str | Callable[..., Any] = "cross_entropy"
    epochs: int = Field(5, ge=1)
    seed: int = Field(1, ge=0, lt=2**62)
    accumulate: int = Field(1, ge=1)
    """Batches per rank whose gradients are added up before one step."""
    clip_norm: float | None = Field(None, gt=0)
    share: bool = True
    """Largest norm of the averaged gradient."""
    validate_every: int = Field(1, ge=1)
    """Epochs between validations."""
    stop: StopConfig = StopConfig()
    run_dir: str | None = None
    threads: int | None = Field(None, ge=1)
    """Threads per rank; by default the cores of the node divided by its ranks."""
    progress: Literal["auto", "bar", "plain", "off"] = "auto"
    events_every: int = Field(1, ge=0)
    """Steps between two step events in the event log; 0 for none."""

    @field_validator("progress", mode="before")
    @classmethod
    def read_progress(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML reads off as false

    @field_validator("rule", mode="before")
    @classmethod
    def read_rule(cls, value: Any) -> Rule:
        try:
            return make_rule(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error

    def describe(self) -> dict[str, Any]:
        """The settings as plain values, for config.yaml; without its own place, so that the file
        can be run again."""
        apart = {"rule", "model", "data", "optimizer", "loss", "run_dir"}
        plain = self.model_dump(exclude=apart)
        data = {key: _plain(getattr(self.data, key)) for key in DataConfig.model_fields}
        optimizer = self.optimizer
        named = optimizer.settings() if isinstance(optimizer, OptimizerConfig) else optimizer
        rule = {"name": self.rule.name, **vars(self.rule)}
        top = {"model": _plain(self.model), "data": data, "rule": rule}
        return top | {"optimizer": _plain(named), "loss": _plain(self.loss)} | plain


_MOST_VALUES = 10_000
"""In a run file: far more than any has."""


def read_config(*levels: Mapping[str, Any]) -> RunConfig:
    """One config from levels of settings, the later ones winning; all faults reported at once.

    A level that names another optimizer, rule or schedule forgets the settings that lower levels
    gave to the old one.
    """
    merged: dict[str, Any] = {}
    for level in levels:
        merged = _merge(merged, _spelt_out(level), forget=True)
    schedule = merged.get("schedule")
    if isinstance(schedule, dict):
        schedule.setdefault("name", "constant")
    try:
        return RunConfig(**merged)
    except ValidationError as error:
        faults = [_explain(fault) for fault in _relevant(error.errors())]
        raise ConfigError("; ".join(dict.fromkeys(faults))) from None


def combine(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of one level, given one by one: nothing is forgotten, the later ones win."""
    combined: dict[str, Any] = {}
    for layer in layers:
        combined = _merge(combined, _spelt_out(layer), forget=False)
    return combined


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a YAML file."""
    try:
        content = _load_yaml(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"run file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"run file {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        place = " ".join(str(error).split())
        raise ConfigError(f"run file {path} is not valid YAML: {place}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"run file {path} holds a {type(content).__name__}, expected settings")
    return content


def _load_yaml(text: str) -> Any:
    """Plain values; a YAMLError for what would take for ever to walk through."""
    try:
        content = yaml.safe_load(text)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    ahead, seen = [content], 0
    while ahead:  # aliases may stand for more values than there are atoms, or for themselves
        seen += 1
        if seen > _MOST_VALUES:
            raise yaml.YAMLError(f"with its aliases it has more than {_MOST_VALUES} values")
        value = ahead.pop()
        if isinstance(value, dict):
            ahead.extend(value.values())
        elif isinstance(value, list | tuple | set):
            ahead.extend(value)
    return content


def read_assignment(text: str) -> dict[str, Any]:
    """`section.key=value` as nested settings; the value is read as YAML.

    >>> read_assignment("optimizer.lr=1e-3")
    {'optimizer': {'lr': 0.001}}
    """
    path, equals, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise ConfigError(f"--set {text!r} is not of the form section.key=value")
    try:
        setting: Any = _number(_load_yaml(value))
    except yaml.YAMLError:
        raise ConfigError(f"--set {path}: the value {value!r} is not valid YAML") from None
    for key in reversed(keys):
        setting = {key: setting}
    return dict(setting)


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


def _number(value: Any) -> Any:
    """YAML 1.1 reads 1e-3 as text; a number was meant."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _plain(value: Any) -> Any:
    """What YAML can hold: plain values as they are, data and functions by their kind."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list) and len(value) <= 16 and not _holds_data(value):
        return [_plain(item) for item in value]
    return f"<{getattr(value, '__qualname__', type(value).__qualname__)}>"


def _holds_data(value: Any) -> bool:
    return any(hasattr(item, "__len__") and not isinstance(item, str) for item in value)


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
    named = {fault["loc"][0] for fault in faults if fault["loc"][-1] != "callable"}
    return [f for f in faults if f["loc"][-1] != "callable" or f["loc"][0] not in named]


def _explain(fault: Any) -> str:
    """One sentence: which key, what it is, what was expected."""
    place = [str(part) for part in fault["loc"] if part not in ("OptimizerConfig", "callable")]
    section = next((_SECTIONS[part] for part in reversed(place[:-1]) if part in _SECTIONS), None)
    name = ".".join(part for part in place if part not in ("constant", "step", "cosine"))
    if fault["type"] == "extra_forbidden":
        valid = list((section or RunConfig).model_fields)
        near = difflib.get_close_matches(place[-1], valid, n=1)
        prefix = name.rpartition(".")[0]
        hint = f"did you mean {prefix + '.' if prefix else ''}{near[0]}? " if near else ""
        if name in _ELSEWHERE:
            hint = f"did you mean {_ELSEWHERE[name]}? "
        return f"{name} is not a setting; {hint}(valid here: {', '.join(valid)})"
    if place == ["optimizer"]:
        return (
            f"optimizer is a {type(fault['input']).__name__}, expected a name, settings "
            "({name: ..., lr: ...}) or a function of the parameters"
        )
    if fault["type"] == "union_tag_invalid":
        return f"{name}.name is {fault['ctx']['tag']!r}, expected constant, step or cosine"
    message = fault["msg"].removeprefix("Value error, ")
    if message.startswith(("rule", "stop.")):
        return str(message)
    return f"{name} is {fault['input']!r}, expected: {_expectation(message)}"


def _expectation(message: str) -> str:
    return message.removeprefix("Input should be ").split(", unable to")[0]
