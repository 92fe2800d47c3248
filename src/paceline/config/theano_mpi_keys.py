"""What each key of a Theano-MPI config means in Paceline.

The keys are those of the config files of theano_alexnet and Theano-MPI (github.com/uoguelph-mlrg),
2014 to 2016, with a function or a line for each; `theano_mpi` combines them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from paceline.config.messages import show
from paceline.errors import ConfigError

Settings = Mapping[str, Any]


class Told(NamedTuple):
    """Paceline's settings by their dotted keys, and what else there is to know."""

    settings: Settings = MappingProxyType({})
    why: str = ""


class Known(NamedTuple):
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
    def period(self) -> Any:
        """Steps between two exchanges, where it is said."""
        return next((self.old[key] for key in PERIODS if key in self.old), None)

    @property
    def name(self) -> str:
        """Today's rule: weights were averaged by type avg, or where that came seldom."""
        if self.rule != "BSP":
            return self.rule.lower()
        seldom = self.period is not None and not _is_one(self.period) and self.mode != "cdd"
        return "average" if self.mode == "avg" or seldom else "bsp"


Reader = Callable[[str, Any, Known], Told]

MODES = ("worker_type", "train_mode", "sync_type")
PERIODS = ("avg_freq", "sync_freq")
"""One key each, under the names it has had."""
MODELS = {"alexnet": "alexnet", "googlenet": "googlenet", "vggnet": "vgg"}
_WIRES = dict.fromkeys(("ar", "asa32", "copper", "nccl32"), "float32") | dict.fromkeys(
    ("asa16", "copper16", "nccl16"), "float16"
)
_SCALED = (
    "Theano-MPI multiplied it by the number of workers, Paceline does not; for the same training "
    "give --lr with the product"
)


def _is_one(value: Any) -> bool:
    return type(value) is int and value == 1


def read_rule(key: str, value: Any, known: Known) -> Told:
    if known.rule in ("BSP", "EASGD"):
        return Told({"rule.name": known.name})
    raise ConfigError(
        f"{key} is {show(value)}, expected BSP or EASGD; for other rules write a "
        "run file of Paceline (rule: downpour, gossip, ...)"
    )


def read_period(key: str, value: Any, known: Known) -> Told:
    if known.rule == "EASGD" or known.mode == "avg":
        return Told({"rule.every": value})
    if known.mode == "cdd" and not _is_one(value):
        raise ConfigError(
            f"{key} is {show(value)} and the workers' type cdd, whose updates are averaged in "
            "every step; set worker_type: avg, or 1"
        )
    if _is_one(value):
        return Told({"rule.name": "bsp"}, "gradients, in every step")
    return Told({"rule.name": "average", "rule.every": value})


def read_mode(key: str, value: Any, known: Known) -> Told:
    if known.rule == "EASGD":
        return Told(why="not needed: EASGD exchanges weights")
    if value == "avg":
        every = {} if known.period is not None else {"rule.every": 1}
        why = "with SGD and 1 step the course of gradients"
        return Told({"rule.name": "average", **every}, why)
    if value == "cdd":
        return Told({"rule.name": "bsp"})
    raise ConfigError(f"{key} is {show(value)}, expected avg or cdd")


def read_start(key: str, value: Any, known: Known) -> Told:
    if _flag(key, value):
        return Told(why="as always: all ranks start together")
    return Told(why="not supported: no worker can join later; all ranks start together")


def read_strategy(key: str, value: Any, known: Known) -> Told:
    if _text(value) not in _WIRES:
        raise ConfigError(f"{key} is {show(value)}, expected one of: {', '.join(_WIRES)}")
    return _wire(_WIRES[value], known)


def read_precision(key: str, value: Any, known: Known) -> Told:
    if value not in (16, 32):
        raise ConfigError(f"{key} is {show(value)}, expected 16 or 32")
    return _wire(f"float{value}", known)


def _wire(wire: str, known: Known) -> Told:
    if known.rule == "EASGD":
        return Told(
            why="not needed: EASGD sent float32, and does so here unless exchange.wire is set"
        )
    return Told({"exchange.wire": wire}, "between nodes")


def read_alpha(key: str, value: Any, known: Known) -> Told:
    if known.rule != "EASGD":
        return Told(why="not needed: BSP has no centre to pull at")
    if key in ("alpha_step", "alpha_minus"):
        return Told(why="not done: the force is constant unless rule.final_force is set")
    if key == "server_alpha" and "worker_alpha" in known.old:
        return Told(why="not used: centre and worker have the same force, the worker's")
    return Told({"rule.force": value})


def read_momentum(key: str, value: Any, known: Known) -> Told:
    if known.old.get("use_momentum") is False:
        return Told(why="not used, as in Theano-MPI: use_momentum is False")
    return Told({"optimizer.momentum": value})


def read_use_momentum(key: str, value: Any, known: Known) -> Told:
    if _flag(key, value):
        return Told(why="as always with sgd")
    return Told({"optimizer.momentum": 0.0})


def read_nesterov(key: str, value: Any, known: Known) -> Told:
    if _flag(key, value):
        return Told({"optimizer.nesterov": True})
    return Told(why="as always")


def read_policy(key: str, value: Any, known: Known) -> Told:
    if "schedule" in known.given:
        return Told(why="not used: a schedule is given")
    if value != "step":
        raise ConfigError(
            f"{key} is {show(value)}, and only step is supported; choose a schedule of Paceline: "
            "--schedule cosine, or schedule: in the file"
        )
    if "lr_step" not in known.old:
        raise ConfigError(f"{key} is step and lr_step is missing; set lr_step: [20, 40, 60]")
    return Told({"schedule.name": "step"})


def read_steps(key: str, value: Any, known: Known) -> Told:
    if "schedule" in known.given:
        return Told(why="not used: a schedule is given")
    if known.old.get("lr_policy", "step") != "step":
        return Told(why="not used, as in Theano-MPI: lr_policy is not step")
    steps = value if isinstance(value, list) else [value]
    if not steps or not all(type(step) is int and step > 0 for step in steps):
        raise ConfigError(f"{key} is {show(value)}, expected epochs as in [20, 40, 60]")
    if isinstance(value, list):
        return Told({"schedule.name": "step", "schedule.at": steps, "schedule.gamma": 0.1})
    return Told({"schedule.name": "step", "schedule.every": value, "schedule.gamma": 0.1})


def read_name(key: str, value: Any, known: Known) -> Told:
    if _text(value) in MODELS:
        return Told({"model": MODELS[value]})
    if "model" in known.given:
        return Told(why="not used: a model is given")
    raise ConfigError(
        f"{key} is {show(value)}, which Paceline does not have (it has {', '.join(MODELS)}); name "
        "your own: paceline train file.py:function TRAIN --config FILE, or model: in the file"
    )


def read_classes(key: str, value: Any, known: Known) -> Told:
    classes = 1000 if _text(known.old.get("name")) in MODELS else 10
    if "model" in known.given:
        return Told(why="not needed: the given model has its own")
    if value == classes:
        return Told(why="the model has as many")
    raise ConfigError(
        f"{key} is {show(value)}, and the model has {classes} classes; build it with as many as "
        "you need in a function of your own: model: file.py:function"
    )


def read_folder(key: str, value: Any, known: Known) -> Told:
    part = "train" if key == "train_folder" else "validation"
    if f"data.{part}" in known.given:
        return Told(why="not used: the data is given")
    if part == "validation":
        return Told(why="not read (hickle files); set data.validation to validate")
    raise ConfigError(
        f"{key} is {show(value)}: the hickle files of Theano-MPI are not supported; convert them, "
        "and name the data: paceline train MODEL TRAIN VAL --config FILE, or data: {train: ...} in "
        "the file"
    )


def read_resume(key: str, value: Any, known: Known) -> Told:
    if not _flag(key, value):
        return Told(why="a new run, as always")
    place = known.old.get("load_path", "auto")
    return Told({"resume": place}, "a run of Paceline; Theano-MPI's weights are not supported")


def read_snapshots(key: str, value: Any, known: Known) -> Told:
    rarer = "" if value == 1 else "the nearest; a number of steps or a time is possible, too"
    return Told({"checkpoint_every": "epoch"}, rarer)


def read_loading(key: str, value: Any, known: Known) -> Told:
    if _flag(key, value):
        return Told(why="as always: batches are prepared in the background (data.prefetch)")
    return Told({"data.prefetch": 0})


def read_random(key: str, value: Any, known: Known) -> Told:
    if _flag(key, value):
        return Told(why="as always; a seed makes a run repeatable")
    return Told({"data.shuffle": False})


def refuse_if_set(why: str) -> Reader:
    """A key whose False is what Paceline does, and whose True is not supported."""

    def read(key: str, value: Any, known: Known) -> Told:
        if _flag(key, value):
            raise ConfigError(f"{key} is True: {why}; set it to False")
        return Told(why="as always")

    return read


def leave_out_if_set(why: str) -> Reader:
    """A key whose False is what Paceline does, and whose True makes little difference."""
    return lambda key, value, known: Told(why=why if _flag(key, value) else "as always")


def rename(name: str, why: str = "") -> Reader:
    return lambda key, value, known: Told({name: value}, why)


def leave_out(why: str) -> Reader:
    return lambda key, value, known: Told(why=why)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _flag(key: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigError(f"{key} is {show(value)}, expected True or False")


_NO_PORT = leave_out("not needed: no port is opened")
_NO_DEVICE = leave_out("not needed: each rank finds its device")
_DATA = leave_out("not needed: data.train and data.validation name the data")
_UNTOUCHED = "not done: images are used as they are; do it in file.py:function"
_PIXELS, _PIXELS_IF_SET = leave_out(_UNTOUCHED), leave_out_if_set(_UNTOUCHED)
_SIZE = leave_out("not needed: the images have their own size")
_TELLING = leave_out("not needed: see progress, history.jsonl and the event log")
_PLACE = leave_out("not needed: every run has its own directory in runs/ (run_dir)")

KEYS: dict[str, Reader] = {
    "sync_rule": read_rule,
    "avg_freq": read_period,
    "sync_freq": read_period,
    **dict.fromkeys(MODES, read_mode),
    "sync_start": read_start,
    "exch_strategy": read_strategy,
    "fp": read_precision,
    "alpha": read_alpha,
    "worker_alpha": read_alpha,
    "server_alpha": read_alpha,
    "alpha_step": read_alpha,
    "alpha_minus": read_alpha,
    "name": read_name,
    "n_softmax_out": read_classes,
    "n_epochs": rename("epochs"),
    "batch_size": rename("data.batch_size", "per rank, as in Theano-MPI"),
    "learning_rate": rename("optimizer.lr", _SCALED),
    "momentum": read_momentum,
    "use_momentum": read_use_momentum,
    "use_nesterov_momentum": read_nesterov,
    "weight_decay": rename(
        "optimizer.weight_decay", "for all parameters; in Theano-MPI not for biases"
    ),
    "lr_policy": read_policy,
    "lr_step": read_steps,
    "lr_adapt_threshold": leave_out("not needed: it belongs to lr_policy auto"),
    "val_freq": rename("validate_every"),
    "snapshot_freq": read_snapshots,
    "resume_train": read_resume,
    "load_path": leave_out("see resume_train"),
    "load_epoch": leave_out("not needed: the newest checkpoint is used"),
    "shuffle": rename("data.shuffle"),
    "random": read_random,
    "weight_init_seed": rename("seed"),
    "dropout_init_seed": leave_out("not needed: one seed for all"),
    "rand_crop": _PIXELS_IF_SET,
    "flip": _PIXELS_IF_SET,
    "use_data_layer": _PIXELS_IF_SET,
    "batch_crop_mirror": _PIXELS,
    "image_mean": _PIXELS,
    "mean_file": _PIXELS,
    "input_width": _SIZE,
    "input_height": _SIZE,
    "para_load": read_loading,
    "file_batch_size": leave_out("not needed: batches do not depend on files"),
    "train_folder": read_folder,
    "val_folder": read_folder,
    "dir_head": _DATA,
    "lmdb_head": _DATA,
    "label_folder": _DATA,
    "data_source": _DATA,
    "weights_dir": _PLACE,
    "record_dir": _PLACE,
    "print_freq": _TELLING,
    "print_info_every": _TELLING,
    "print_train_error": _TELLING,
    "verbose": _TELLING,
    "flag_top_5": leave_out_if_set("not done: val_accuracy is top-1"),
    "monitor_grad": leave_out_if_set("not done: gradient norms are not recorded"),
    "initial_val": leave_out_if_set("not done: the first validation is after the first epoch"),
    "debug": refuse_if_set("it trained on a few files; give smaller data instead"),
    "pretrain": refuse_if_set("it trained a VGG of 11 layers; name model: file.py:function"),
    "source": leave_out("not needed: there is one VGG"),
    "lib_conv": leave_out("not needed: the framework has its own convolutions"),
    "cuda_aware": leave_out("not needed: buffers are passed to MPI as they are"),
    "device": _NO_DEVICE,
    "gpushift": _NO_DEVICE,
    "gpu0": _NO_DEVICE,
    "gpu1": _NO_DEVICE,
    "sock_data": _NO_PORT,
    "sock_data0": _NO_PORT,
    "sock_data1": _NO_PORT,
    "sock_gpu": _NO_PORT,
}
"""Every supported key, and the function that reads it."""
