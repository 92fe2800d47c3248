"""Keys of a Theano-MPI config whose meaning depends on their value or on other keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from paceline.config.messages import show
from paceline.errors import ConfigError

Settings = Mapping[str, object]


class Meaning(NamedTuple):
    """Paceline's settings by their dotted keys, and what else there is to know."""

    settings: Settings = MappingProxyType({})
    note: str = ""


class OldConfig(NamedTuple):
    """What a key may depend on: the old settings, and the keys of new ones that are given too."""

    old: Settings
    given: frozenset[str]

    @property
    def rule(self) -> str:
        """BSP or EASGD; later files say EASGD as the type of the workers."""
        usual = "EASGD" if (self.mode or "").upper() == "EASGD" else "BSP"
        return _text(self.old.get("sync_rule", usual)).upper()

    @property
    def mode(self) -> str | None:
        """Whether workers of BSP average weights (avg) or updates (cdd), where it is said."""
        return next((_text(self.old[key]) for key in MODES if key in self.old), None)

    @property
    def period(self) -> object:
        """Steps between two exchanges, where it is said."""
        return next((self.old[key] for key in PERIODS if key in self.old), None)

    @property
    def name(self) -> str:
        """Paceline's rule: weights were averaged with type avg, or if the period is above 1."""
        if self.rule != "BSP":
            return self.rule.lower()
        rarely = self.period is not None and not _is_one(self.period) and self.mode != "cdd"
        return "average" if self.mode == "avg" or rarely else "bsp"


Reader = Callable[[str, object, OldConfig], Meaning]

MODES = ("worker_type", "train_mode", "sync_type")
PERIODS = ("avg_freq", "sync_freq")
"""One key each, under the names it has had."""
MODELS = {"alexnet": "alexnet", "googlenet": "googlenet", "vggnet": "vgg"}
_WIRES = dict.fromkeys(("ar", "asa32", "copper", "nccl32"), "float32") | dict.fromkeys(
    ("asa16", "copper16", "nccl16"), "float16"
)


def _is_one(value: object) -> bool:
    return type(value) is int and value == 1


def read_rule(key: str, value: object, config: OldConfig) -> Meaning:
    if config.rule in ("BSP", "EASGD"):
        return Meaning({"rule.name": config.name})
    raise ConfigError(
        f"{key} is {show(value)}, expected BSP or EASGD; for other rules write a "
        "run file of Paceline (rule: downpour, gossip, ...)"
    )


def read_period(key: str, value: object, config: OldConfig) -> Meaning:
    if config.rule == "EASGD" or config.mode == "avg":
        return Meaning({"rule.every": value})
    if config.mode == "cdd" and not _is_one(value):
        raise ConfigError(
            f"{key} is {show(value)} and the workers' type cdd, whose updates are averaged in "
            "every step; set worker_type: avg, or 1"
        )
    if _is_one(value):
        return Meaning({"rule.name": "bsp"}, "gradients, in every step")
    return Meaning({"rule.name": "average", "rule.every": value})


def read_mode(key: str, value: object, config: OldConfig) -> Meaning:
    if config.rule == "EASGD":
        return Meaning(note="not needed: EASGD exchanges weights")
    if value == "avg":
        every = {} if config.period is not None else {"rule.every": 1}
        note = "with SGD and 1 step, the same as gradients"
        return Meaning({"rule.name": "average", **every}, note)
    if value == "cdd":
        return Meaning({"rule.name": "bsp"})
    raise ConfigError(f"{key} is {show(value)}, expected avg or cdd")


def read_start(key: str, value: object, config: OldConfig) -> Meaning:
    if as_flag(key, value):
        return Meaning(note="all ranks start together")
    return Meaning({"elastic": True}, "more workers join with paceline join RUN -n N")


def read_strategy(key: str, value: object, config: OldConfig) -> Meaning:
    strategy = _text(value)
    if strategy not in _WIRES:
        raise ConfigError(f"{key} is {show(value)}, expected one of: {', '.join(_WIRES)}")
    return _wire(_WIRES[strategy], config)


def read_precision(key: str, value: object, config: OldConfig) -> Meaning:
    if value not in (16, 32):
        raise ConfigError(f"{key} is {show(value)}, expected 16 or 32")
    return _wire(f"float{value}", config)


def _wire(wire: str, config: OldConfig) -> Meaning:
    if config.rule == "EASGD":
        return Meaning(
            note="not needed: EASGD sent float32, and does so here unless exchange.wire is set"
        )
    return Meaning({"exchange.wire": wire}, "between nodes")


def read_alpha(key: str, value: object, config: OldConfig) -> Meaning:
    if config.rule != "EASGD":
        return Meaning(note="not needed: BSP has no centre to pull at")
    if key in ("alpha_step", "alpha_minus"):
        return Meaning(note="not done: the force is constant unless rule.final_force is set")
    if key == "server_alpha" and "worker_alpha" in config.old:
        return Meaning(note="not used: centre and worker have the same force, the worker's")
    return Meaning({"rule.force": value})


def read_momentum(key: str, value: object, config: OldConfig) -> Meaning:
    if config.old.get("use_momentum") is False:
        return Meaning(note="not used, as in Theano-MPI: use_momentum is False")
    return Meaning({"optimizer.momentum": value})


def read_use_momentum(key: str, value: object, config: OldConfig) -> Meaning:
    if as_flag(key, value):
        return Meaning(note="as always with sgd")
    return Meaning({"optimizer.momentum": 0.0})


def read_nesterov(key: str, value: object, config: OldConfig) -> Meaning:
    if as_flag(key, value):
        return Meaning({"optimizer.nesterov": True})
    return Meaning(note="as always")


def read_policy(key: str, value: object, config: OldConfig) -> Meaning:
    if "schedule" in config.given:
        return Meaning(note="not used: a schedule is given")
    if value != "step":
        raise ConfigError(
            f"{key} is {show(value)}, and only step is supported; choose a schedule of Paceline: "
            "--schedule cosine, or schedule: in the file"
        )
    if "lr_step" not in config.old:
        raise ConfigError(f"{key} is step and lr_step is missing; set lr_step: [20, 40, 60]")
    return Meaning({"schedule.name": "step"})


def read_steps(key: str, value: object, config: OldConfig) -> Meaning:
    if "schedule" in config.given:
        return Meaning(note="not used: a schedule is given")
    if config.old.get("lr_policy", "step") != "step":
        return Meaning(note="not used, as in Theano-MPI: lr_policy is not step")
    steps = value if isinstance(value, list) else [value]
    if not steps or not all(type(step) is int and step > 0 for step in steps):
        raise ConfigError(f"{key} is {show(value)}, expected epochs as in [20, 40, 60]")
    if isinstance(value, list):
        return Meaning({"schedule.name": "step", "schedule.at": steps, "schedule.gamma": 0.1})
    return Meaning({"schedule.name": "step", "schedule.every": value, "schedule.gamma": 0.1})


def read_name(key: str, value: object, config: OldConfig) -> Meaning:
    name = _text(value)
    if name in MODELS:
        return Meaning({"model": MODELS[name]})
    if "model" in config.given:
        return Meaning(note="not used: a model is given")
    raise ConfigError(
        f"{key} is {show(value)}, which Paceline does not have (it has {', '.join(MODELS)}); name "
        "your own: paceline train file.py:function TRAIN --config FILE, or model: in the file"
    )


def read_classes(key: str, value: object, config: OldConfig) -> Meaning:
    classes = 1000 if _text(config.old.get("name")) in MODELS else 10
    if "model" in config.given:
        return Meaning(note="not needed: the given model has its own")
    if value == classes:
        return Meaning(note="the model has as many")
    raise ConfigError(
        f"{key} is {show(value)}, and the model has {classes} classes; build it with as many as "
        "you need in a function of your own: model: file.py:function"
    )


def read_folder(key: str, value: object, config: OldConfig) -> Meaning:
    part = "train" if key == "train_folder" else "validation"
    if f"data.{part}" in config.given:
        return Meaning(note="not used: the data is given")
    if part == "validation":
        return Meaning(note="not read (hickle files); set data.validation to validate")
    raise ConfigError(
        f"{key} is {show(value)}: the hickle files of Theano-MPI are not supported; convert them, "
        "and name the data: paceline train MODEL TRAIN VAL --config FILE, or data: {train: ...} in "
        "the file"
    )


def read_resume(key: str, value: object, config: OldConfig) -> Meaning:
    if not as_flag(key, value):
        return Meaning(note="a new run, as always")
    place = config.old.get("load_path", "auto")
    return Meaning({"resume": place}, "a run of Paceline; Theano-MPI's weights are not supported")


def read_snapshots(key: str, value: object, config: OldConfig) -> Meaning:
    rarer = "" if value == 1 else "the nearest; a number of steps or a time is possible, too"
    return Meaning({"checkpoint_every": "epoch"}, rarer)


def read_loading(key: str, value: object, config: OldConfig) -> Meaning:
    if as_flag(key, value):
        return Meaning(note="as always: batches are prepared in the background (data.prefetch)")
    return Meaning({"data.prefetch": 0})


def read_random(key: str, value: object, config: OldConfig) -> Meaning:
    if as_flag(key, value):
        return Meaning(note="as always; a seed makes a run repeatable")
    return Meaning({"data.shuffle": False})


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_flag(key: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigError(f"{key} is {show(value)}, expected True or False")
