"""The settings of a run, and what each may be. `reading` makes a RunConfig from what users write.

Every field is described here and nowhere else: flags, their help and the tables in
docs/settings.md come from its docstring and annotations (see `setting`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from paceline.cluster.cores import most_threads
from paceline.config.data import DataConfig
from paceline.config.messages import show
from paceline.config.optimizer import OptimizerConfig
from paceline.config.plain import as_plain, is_placeholder, names_as_plain
from paceline.config.schedules import Constant, Schedule
from paceline.config.section import Section
from paceline.config.setting import Flag, Group, Values
from paceline.config.stopping import ElasticConfig, StopConfig
from paceline.core.quantities import Period
from paceline.core.suggestions import nearest
from paceline.core.user_code import describe_failure
from paceline.errors import ConfigError
from paceline.frameworks.registry import FILES
from paceline.models import MODELS
from paceline.rules import RULES, Rule, describe_rule, make_rule
from paceline.sync.settings import ExchangeSettings, check_settings, make_settings

MOST_BATCHES = 1_000_000
"""No run adds up more for a step, nor keeps more checkpoints."""
LONGEST_S = 1e9

_MODEL = Values("a name, file or function; in Python also a module or a Replica", tuple(MODELS))
_LOSS = Values("a name; in Python also a function")


class RunConfig(Section):
    """Everything that can be set for a run."""

    model: Annotated[object, Group("Model"), Flag("MODEL"), _MODEL] = "mnist"
    """A YAML run file; a function (`file.py:function` or `package.module:function`) that returns a
    `torch.nn.Module`, a Keras or a JAX model; a model file (`.keras`, `.json`, `.pt2`, `.pt`); or
    one of Paceline's models.

    Paceline's models are in [models.md](models.md)."""
    weights: Annotated[str | None, Flag("--weights", "FILE"), Values("path")] = None
    """Torch: start from this state_dict (`.safetensors` or `.pt`).

    Every name and shape must fit."""
    compile: Annotated[bool, Flag("--compile")] = False
    """Torch: run the model through `torch.compile`.

    This needs a C++ compiler on every node, and makes the first steps slow."""
    precision: Annotated[Literal["float32", "bfloat16"], Flag("--precision", "TYPE")] = "float32"
    """Torch: precision of the layers; parameters, loss and optimizer stay float32.

    `bfloat16` uses autocast."""
    loss: Annotated[object, Flag("--loss"), _LOSS] = "cross_entropy"
    """Loss: `cross_entropy`, `nll`, `binary_crossentropy` (on logits), `mse`, `mae` or `huber`.

    In Python also `loss(outputs, targets)`; for a Keras model of several outputs also one for each
    of them."""

    data: Annotated[DataConfig, Group("Training data")] = DataConfig()

    optimizer: Annotated[
        OptimizerConfig | Callable[..., object], Group("Optimizer and learning rate")
    ] = OptimizerConfig()
    schedule: Annotated[Schedule, Field(discriminator="name")] = Constant()
    accumulate: Annotated[int, Flag("--accumulate")] = Field(1, ge=1, le=MOST_BATCHES)
    """Batches per rank whose gradients are added up before one step.

    The batch of a step is that much larger, and computed in parts."""
    clip_norm: Annotated[float | None, Flag("--clip-norm")] = Field(None, gt=0)
    """Largest norm of the averaged gradient (default: not clipped)."""

    rule: Annotated[
        Rule,
        Group("Rule and exchange"),
        Flag("--rule"),
        Values(names=tuple(RULES)),
    ] = Field(default_factory=lambda: make_rule("bsp"))
    """How the ranks keep pace: `file.py:Class` for your own rule, or one of Paceline's.

    Further keys of the section are settings of the rule: see [rules.md](rules.md), and for your own
    [own-rule.md](own-rule.md)."""
    exchange: ExchangeSettings = ExchangeSettings()

    epochs: Annotated[int, Group("Length of the run"), Flag("--epochs")] = Field(5, ge=1, le=10**9)
    """Passes over the training data."""
    validate_every: Annotated[int, Flag("--validate-every")] = Field(1, ge=1)
    """Epochs between validations.

    The last epoch is always validated."""
    stop: StopConfig = StopConfig()
    keep: Annotated[Literal["last", "best"], Flag("--keep")] = "last"
    """Which models the run directory keeps: `model.*` is the last; with `best`, `best.*` is that of
    the validation with the lowest `val_loss`."""
    max_time: Annotated[str | None, Flag("--max-time", "TIME"), Values("a time such as `90m`")] = (
        None
    )
    """Save and exit with code 75 after this time, for example `90m`."""

    checkpoint_every: Annotated[
        int | str | None,
        Group("Checkpoints"),
        Flag("--checkpoint-every", "PERIOD"),
        Values("`epoch`, a number of steps, or a time such as `30s`, `10m`, `2h`"),
    ] = None
    """Save a checkpoint every epoch, every N steps, or every so often, as `10m` (default: only when
    the run is asked to stop).

    See [reliability.md](reliability.md)."""
    keep_checkpoints: Annotated[int, Flag("--keep-checkpoints", "K")] = Field(
        2, ge=1, le=MOST_BATCHES
    )
    """Keep the K newest checkpoints."""
    resume: Annotated[
        str | None, Flag("--resume", "DIR", const="auto"), Values("`auto`, or the path of a run")
    ] = None
    """Resume the run in DIR, with its settings unless you give others; without DIR, or with
    `auto`, from the newest checkpoint in `--run-dir`, else of the newest such run in `runs/`, if
    there is one."""

    elastic: Annotated[ElasticConfig, Group("Lost ranks")] = ElasticConfig()

    max_rejected: Annotated[int, Group("Checks"), Flag("--max-rejected")] = Field(10, ge=0)
    """Batches that a rank may reject because loss or gradients are not finite."""
    check_replicas: Annotated[int | None, Flag("--check-replicas")] = Field(None, ge=1)
    """Compare the replicas every N steps, where the rule keeps them equal (default: never)."""
    stall_warning_s: float = Field(30.0, gt=0, le=LONGEST_S)
    """Report which rank the others wait for after this many seconds without progress."""
    stall_timeout_s: float = Field(600.0, gt=0, le=LONGEST_S)
    """End the run after this many seconds without progress."""

    seed: Annotated[int, Group("The run itself"), Flag("--seed")] = Field(1, ge=0, lt=2**62)
    """Seed of model, data order and dropout."""
    threads: Annotated[int | None, Flag("--threads", "T", of_launcher=True)] = Field(
        None, ge=1, le=most_threads()
    )
    """Threads per rank (default: `$OMP_NUM_THREADS`, else what the job was granted, else
    cores / ranks)."""
    run_dir: Annotated[str | None, Flag("--run-dir", "DIR"), Values("path")] = None
    """Where to write config, history, events, checkpoints and model (default: a new folder in
    `runs/`)."""
    progress: Annotated[Literal["auto", "bar", "plain", "off"], Flag("--progress", "HOW")] = "auto"
    """How to show progress.

    `auto` is a bar on a terminal, else plain lines."""
    events_every: int = Field(1, ge=0)
    """Steps between step events in the event log; 0 for none."""

    @field_validator("progress", mode="before")
    @classmethod
    def read_progress(cls, value: object) -> object:
        return "off" if value is False else value  # YAML reads off as false

    @field_validator("model", mode="after")
    @classmethod
    def check_model(cls, value: object) -> object:
        if isinstance(value, str):
            _check_model_name(value)
        return value

    @field_validator("loss", mode="after")
    @classmethod
    def check_loss(cls, value: object) -> object:
        if not isinstance(value, str | dict | list) and not callable(value):
            raise ValueError("a valid string, a function, or one for each output of a Keras model")
        return value

    @field_validator("optimizer", mode="before")
    @classmethod
    def read_optimizer(cls, value: object) -> object:
        return _as_function(value) if hasattr(value, "stateless_apply") else value

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

    @field_validator("exchange", mode="before")
    @classmethod
    def read_exchange(cls, value: Any) -> ExchangeSettings:
        try:
            return make_settings(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @model_validator(mode="after")
    def check_exchange(self) -> RunConfig:
        try:
            check_settings(self.rule, self.exchange)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def short_name(self) -> str:
        """Model and rule, as in `mnist-bsp`, to name folders and jobs."""
        model = self.model
        name = model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)
        return f"{Path(name.replace(':', '-')).name.replace('.py', '')}-{self.rule.name}"

    def describe(self) -> dict[str, object]:
        """The settings as plain values, for config.yaml; without run_dir and resume, so that the
        file can be run again."""
        apart = {"rule", "exchange", "model", "data", "optimizer", "loss", "run_dir", "resume"}
        plain = self.model_dump(exclude=apart)
        data = {key: as_plain(getattr(self.data, key)) for key in DataConfig.model_fields}
        data["keys"] = names_as_plain(self.data.keys)
        optimizer = self.optimizer
        named = optimizer.settings() if isinstance(optimizer, OptimizerConfig) else optimizer
        how = {"rule": describe_rule(self.rule), "exchange": asdict(self.exchange)}
        top = {"model": as_plain(self.model), "data": data, **how}
        return top | {"optimizer": as_plain(named), "loss": as_plain(self.loss)} | plain


def _check_model_name(name: str) -> None:
    """A word that can be no model is found before any data is looked at."""
    if name.endswith(".py"):
        raise ValueError(f"no model {show(name)}; name the function in it, as in {name}:build")
    if name in MODELS or ":" in name or Path(name).suffix in FILES or is_placeholder(name):
        return
    near = nearest(name, MODELS)
    if near is not None:
        raise ValueError(f"no model {show(name)}; did you mean {near}?")
    raise ValueError(
        f"no model {show(name)}; name your own as file.py:function, package.module:function or a "
        f"file (.keras, .json, .pt2, .pt), or one of Paceline's: {', '.join(MODELS)}"
    )


def _as_function(optimizer: object) -> Callable[..., object]:
    """A Keras optimizer as a function of the variables, which other frameworks' optimizers are."""

    def return_optimizer(variables: object) -> object:
        return optimizer

    return_optimizer.__qualname__ = type(optimizer).__qualname__
    return return_optimizer


def _check_period(value: int | str, only_time: bool) -> None:
    try:
        period = Period.parse(value)
    except ConfigError:
        period = None
    if only_time and (period is None or period.seconds is None):
        raise ValueError('a time as "90m"')
    if period is None:
        raise ValueError('epoch, a number of steps, or a time as "10m"')
