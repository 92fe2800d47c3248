"""The settings of a run: what there is, and what each may be. `settings.py` reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from paceline.cluster.cores import most_threads
from paceline.config.safe_yaml import show
from paceline.config.schedules import Constant, Schedule
from paceline.config.section import Section
from paceline.config.stopping import StopConfig
from paceline.core.quantities import Period
from paceline.core.user_code import describe_failure
from paceline.data.cache.node_cache import read_bytes
from paceline.data.files.keys import FORMS, read_keys
from paceline.errors import ConfigError
from paceline.rules import Rule, make_rule

MOST_BATCHES = 1_000_000
"""No run adds up more for a step, nor keeps more checkpoints."""
MOST_SAMPLES = 100_000_000
"""In a batch."""
MOST_READY = 10_000
"""Batches in memory at once."""
MOST_LOADERS = 1024
LONGEST_S = 1e9


class DataConfig(Section):
    """What is trained on."""

    train: Any = None
    """digits, mnist, a file, a list or folder of files, file.py:function; in Python also the data
    itself."""
    validation: Any = None
    """The same; for digits and mnist their test images unless said otherwise."""
    batch_size: int = Field(64, ge=1, le=MOST_SAMPLES)
    """Samples per rank and step."""
    validation_batch_size: int = Field(500, ge=1, le=MOST_SAMPLES)
    """Samples per rank and validation step."""
    shuffle: bool = True
    prefetch: int | None = Field(None, ge=0, le=MOST_READY)
    """Batches made ready in the background; by default 2 per loader, and 0 for arrays in memory."""
    loaders: int = Field(1, ge=1, le=MOST_LOADERS)
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


class OptimizerConfig(Section):
    """The optimizer's name; every other key is a setting of its own (lr, momentum, ...)."""

    model_config = ConfigDict(extra="allow")

    name: str = "sgd"
    lr: float | None = Field(None, gt=0)

    @field_validator("*", mode="before")
    @classmethod
    def read_number(cls, value: Any) -> Any:
        return as_number(value)

    def settings(self) -> dict[str, Any]:
        """Name and settings, with the defaults of plain SGD made useful."""
        given = {key: as_number(value) for key, value in self.model_dump(exclude_none=True).items()}
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
    epochs: int = Field(5, ge=1, le=10**9)
    seed: int = Field(1, ge=0, lt=2**62)
    accumulate: int = Field(1, ge=1, le=MOST_BATCHES)
    """Batches per rank whose gradients are added up before one step."""
    clip_norm: float | None = Field(None, gt=0)
    """Largest norm of the averaged gradient."""
    share: bool = True
    """One copy of parameters and optimizer state for the ranks of a node, where the rule is bsp."""
    validate_every: int = Field(1, ge=1)
    """Epochs between validations."""
    stop: StopConfig = StopConfig()
    checkpoint_every: int | str | None = None
    """epoch, a number of steps, or a time as "10m"; by default only who is told to end saves."""
    keep_checkpoints: int = Field(2, ge=1, le=MOST_BATCHES)
    """How many of them are kept, the newest."""
    resume: str | None = None
    """auto: go on from the newest checkpoint, if there is one; or the directory of a run."""
    max_time: str | None = None
    """Save and end after that time, as "90m"; the exit code is 75."""
    max_rejected: int = Field(10, ge=0)
    """Batches that a rank may reject, for a loss or gradients that are not finite."""
    check_replicas: int | None = Field(None, ge=1)
    """Steps between two comparisons of the replicas, where the rule keeps them equal."""
    stall_warning_s: float = Field(30.0, gt=0, le=LONGEST_S)
    """Say who is waited for when nothing has moved for so long."""
    stall_timeout_s: float = Field(600.0, gt=0, le=LONGEST_S)
    """And end the run after that."""
    run_dir: str | None = None
    threads: int | None = Field(None, ge=1, le=most_threads())
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
        settings = {field.name: getattr(self.rule, field.name) for field in fields(self.rule)}
        rule = {"name": self.rule.name, **settings}
        top = {"model": _plain(self.model), "data": data, "rule": rule}
        return top | {"optimizer": _plain(named), "loss": _plain(self.loss)} | plain


def _hand_out(optimizer: Any) -> Callable[..., Any]:
    """A Keras optimizer as a function of the variables, as other frameworks want theirs."""

    def hand_out(variables: Any) -> Any:
        return optimizer

    hand_out.__qualname__ = type(optimizer).__qualname__
    return hand_out


def _check_period(value: int | str, only_time: bool) -> None:
    try:
        period = Period.parse(value)
    except ConfigError:
        period = None
    if only_time and (period is None or period.seconds is None):
        raise ValueError('a time as "90m"')
    if period is None:
        raise ValueError('epoch, a number of steps, or a time as "10m"')


def as_number(value: Any) -> Any:
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
