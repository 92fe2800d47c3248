"""The settings of a run: one model, reached alike from YAML, `--set key=value` and Python."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from paceline.data.cache import read_bytes
from paceline.data.keys import FORMS, read_keys
from paceline.errors import ConfigError
from paceline.functions import describe_failure
from paceline.rules import Rule, make_rule
from paceline.rules.period import Period
from paceline.training.run_file import MOST_BYTES, load_yaml, show
from paceline.training.schedules import Constant, Cosine, Schedule, Step
from paceline.training.stopping import StopConfig, parse_target

SHORTHANDS = ("rule", "optimizer", "schedule")
"""Sections that may be given by their name alone: `rule: bsp` is `rule: {name: bsp}`."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class DataConfig(Section):
    """What is trained on."""

    train: Any = None
    """digits, mnist, a file, a list or folder of files, file.py:function; in Python also the data
    itself."""
    validation: Any = None
    """The same; for digits and mnist their test images unless said otherwise."""
    batch_size: int = Field(64, ge=1)
    """Samples per rank and step."""
    validation_batch_size: int = Field(500, ge=1)
    """Samples per rank and validation step."""
    shuffle: bool = True
    prefetch: int | None = Field(None, ge=0)
    """Batches made ready in the background; by default 2 per loader, and 0 for arrays in memory."""
    loaders: int = Field(1, ge=1)
    """Threads per rank that make them ready."""
    cache_dir: str | None = None
    """A folder on every node, into which the files are copied once, to be read from there."""
    cache_limit: int | str | None = None
    """How much is copied at most, as "10GB"; by default half of what is free there."""
    dir: str | None = None
    """Where the full MNIST lies."""
    keys: Any = None
    """The names of inputs and targets in files: a pair, each a name, a list or a mapping."""
    shuffle_buffer: int | None = Field(None, ge=1)
    """Samples that are shuffled at a time, of files that are read in blocks; by default 64 MB."""

    @field_validator("keys", mode="after")
    @classmethod
    def check_keys(cls, value: Any) -> Any:
        try:
            read_keys(value)
        except ConfigError as error:
            raise ValueError(FORMS) from error
        return value

    @field_validator("cache_limit", mode="after")
    @classmethod
    def read_limit(cls, value: int | str | None) -> int | str | None:
        if value is not None:
            read_bytes(value)
        return value


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
    weights: str | None = None
    """Torch: a state_dict in a .safetensors or .pt file, which the model begins with."""
    compile: bool = False
    """Torch: whether the model goes through torch.compile."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Torch: what the model computes in; its parameters stay float32."""
    data: DataConfig = DataConfig()
    rule: Rule = Field(default_factory=lambda: make_rule("bsp"))
    optimizer: OptimizerConfig | Callable[..., Any] = OptimizerConfig()
    schedule: Annotated[Schedule, Field(discriminator="name")] = Constant()
    loss: Any = "cross_entropy"
    """A name or a function; for a Keras model of several outputs also one for each of them."""
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
    checkpoint_every: int | str | None = None
    """epoch, a number of steps, or a time as "10m"; by default only who is told to end saves."""
    keep_checkpoints: int = Field(2, ge=1)
    """How many of them are kept, the newest."""
    resume: str | None = None
    """auto: go on from the newest checkpoint, if there is one; or the directory of a run."""
    max_time: str | None = None
    """Save and end after that time, as "90m"; the exit code is 75."""
    max_rejected: int = Field(10, ge=0)
    """Batches that a rank may reject, for a loss or gradients that are not finite."""
    check_replicas: int | None = Field(None, ge=1)
    """Steps between two comparisons of the replicas, where the rule keeps them equal."""
    stall_warning_s: float = Field(30.0, gt=0)
    """Say who is waited for when nothing has moved for so long."""
    stall_timeout_s: float = Field(600.0, gt=0)
    """And end the run after that."""
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

    @field_validator("loss", mode="after")
    @classmethod
    def check_loss(cls, value: Any) -> Any:
        if not isinstance(value, str | dict | list) and not callable(value):
            raise ValueError("a valid string, a function, or one for each output of a Keras model")
        return value

    @field_validator("optimizer", mode="before")
    @classmethod
    def read_optimizer(cls, value: Any) -> Any:
        return _hand_out(value) if hasattr(value, "stateless_apply") else value

    @field_validator("checkpoint_every", "max_time", mode="after")
    @classmethod
    def read_period(cls, value: int | str | None, info: ValidationInfo) -> int | str | None:
        if value is not None:
            _check_period(value, only_time=info.field_name == "max_time")
        return value

    @field_validator("rule", mode="before")
    @classmethod
    def read_rule(cls, value: Any) -> Rule:
        try:
            return make_rule(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        except (TypeError, ValueError, ArithmeticError) as error:  # a name that is a list, ...
            raise ValueError(f"rule is {show(value)}: {describe_failure(error)}") from error

    def describe(self) -> dict[str, Any]:
        """The settings as plain values, for config.yaml; without its own place, so that the file
        can be run again."""
        apart = {"rule", "model", "data", "optimizer", "loss", "run_dir", "resume"}
        plain = self.model_dump(exclude=apart)
        data = {key: _plain(getattr(self.data, key)) for key in DataConfig.model_fields}
        data["keys"] = _plain_names(self.data.keys)
        optimizer = self.optimizer
        named = optimizer.settings() if isinstance(optimizer, OptimizerConfig) else optimizer
        rule = {"name": self.rule.name, **vars(self.rule)}
        top = {"model": _plain(self.model), "data": data, "rule": rule}
        return top | {"optimizer": _plain(named), "loss": _plain(self.loss)} | plain


def _hand_out(optimizer: Any) -> Callable[..., Any]:
    """A Keras optimizer as a function of the variables, as other frameworks want theirs."""

    def hand_out(variables: Any) -> Any:
        return optimizer

    hand_out.__qualname__ = type(optimizer).__qualname__
    return hand_out


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


def _check_period(value: int | str, only_time: bool) -> None:
    try:
        period = Period.parse(value)
    except ConfigError:
        period = None
    if only_time and (period is None or period.seconds is None):
        raise ValueError('a time as "90m"')
    if period is None:
        raise ValueError('epoch, a number of steps, or a time as "10m"')


def combine(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of one level, given one by one: nothing is forgotten, the later ones win."""
    combined: dict[str, Any] = {}
    for layer in layers:
        combined = _merge(combined, _spelt_out(layer), forget=False)
    return combined


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a YAML file."""
    try:
        with path.open("rb") as file:
            content = load_yaml(file.read(MOST_BYTES + 1).decode())
    except FileNotFoundError:
        raise ConfigError(f"run file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"run file {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"run file {path} is not valid YAML: {_one_line(error)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"run file {path} holds a {type(content).__name__}, expected settings")
    return content


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
        setting: Any = _number(load_yaml(value))
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


def _plain_names(keys: Any) -> Any:
    """Names, and lists and mappings of names, as they were given."""
    if isinstance(keys, Mapping):
        return {name: _plain_names(item) for name, item in keys.items()}
    return [_plain_names(item) for item in keys] if isinstance(keys, tuple | list) else keys


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
        near = difflib.get_close_matches(place[-1], valid, n=1)
        prefix = name.rpartition(".")[0]
        hint = f"did you mean {prefix + '.' if prefix else ''}{near[0]}? " if near else ""
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
