"""What the parts of a checkpoint hold. Checksums prove that a file is what was written, not that a
run can continue from it: its contents are checked against these first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from paceline.config.messages import show
from paceline.core.trees import Tree
from paceline.core.vectors import Vector
from paceline.observe import TimeSplit


class Kind(NamedTuple):
    """What a value may be, in words and as a test."""

    words: str
    fits: Callable[[Any], bool]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_vector(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1


def _or_none(kind: Kind) -> Kind:
    return Kind(f"{kind.words}, or none", lambda value: value is None or kind.fits(value))


def _are_ranges(value: object) -> bool:
    return (
        isinstance(value, list)
        and all(isinstance(p, list) and len(p) == 2 for p in value)
        and all(type(a) is type(b) is int and 0 <= a <= b for a, b in value)
    )


ANYTHING = Kind("anything", lambda value: True)
COUNT = Kind("a whole number of 0 or more", lambda value: type(value) is int and value >= 0)
FROM_1 = Kind("a whole number of 1 or more", lambda value: type(value) is int and value >= 1)
NUMBER = Kind("a number", _is_number)
AMOUNT = Kind("a number of 0 or more", lambda value: _is_number(value) and value >= 0)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TEXT = Kind("text", lambda value: isinstance(value, str) and bool(value))
NAMED = Kind("named values", lambda value: isinstance(value, dict))
VECTOR = Kind("a vector", _is_vector)
_TIME = {field.name: NUMBER for field in fields(TimeSplit)}
_COUNTS = {"step": COUNT, "samples": COUNT, "samples_in_epoch": COUNT}

FACTS = {
    **dict.fromkeys(("step", "epoch"), COUNT),
    **dict.fromkeys(("ranks", "numbered_for"), FROM_1),
    "workers": [COUNT],
    "servers": [COUNT],
    "optimizer": ANYTHING,
}
_RECORD = {
    **dict.fromkeys(("epoch", "samples"), COUNT),
    **dict.fromkeys(("seconds", "samples_per_s"), NUMBER),
    **{name: _or_none(NUMBER) for name in ("train_loss", "val_loss", "val_accuracy")},
    "learning_rate": _or_none(NUMBER),
    "time": _TIME,
    "metrics": NAMED,
}
COMMON = {
    "parameters": VECTOR,
    "constants": VECTOR,
    "clock": {"samples_per_epoch": _or_none(COUNT), "epoch": COUNT, **_COUNTS},
    "remainder": {
        **dict.fromkeys(("size", "batch_size"), FROM_1),
        "ranges": _or_none(Kind("pairs of whole numbers", _are_ranges)),
    },
    "history": [_RECORD],
    "stopping": {"best": NUMBER, "waited": COUNT},
    "divergence": {"first": [NUMBER]},
    "run": {"reason": _or_none(TEXT)},
}
OWN = {
    "buffers": VECTOR,
    "exchange": NAMED,
    "generators": NAMED,
    "worker": {
        "counts": _COUNTS,
        "position": {
            "taken": COUNT,
            "ended": FLAG,
            "loss_sum": NUMBER,
            "samples_with_loss": AMOUNT,
            "seconds": NUMBER,
        },
        "estimated_samples": COUNT,
        "rejected": COUNT,
        "time": _TIME,
    },
    "callbacks": [ANYTHING],
}
EXCHANGE = {
    **dict.fromkeys(("steps", "steps_taken", "rounds_taken", "exchanges", "refused"), COUNT),
    **dict.fromkeys(("since_push", "batches"), COUNT),
    **dict.fromkeys(("samples", "without_loss", "weight"), AMOUNT),
    **dict.fromkeys(("loss", "seconds"), NUMBER),
    "grants": [COUNT],
    "common_weights": _or_none(
        Kind("a name or a vector", lambda v: isinstance(v, str) or _is_vector(v))
    ),
    "staleness": [[COUNT]],
    "deferred": _or_none(Kind("two flags", lambda v: isinstance(v, list) and len(v) == 2)),
}
"""Of those that an exchange has; no exchange has all."""
SERVER = {
    "centre": VECTOR,
    "state": NAMED,
    "ledger": dict.fromkeys(("samples", "loss", "without_loss", "updates", "granted"), NUMBER),
    "waiting": [COUNT],
}


def check(name: str, value: Any, expected: Any) -> None:
    """A ValueError unless the value is as expected: a Kind, a list of such, or named ones."""
    if isinstance(expected, dict):
        _check_fits(name, value, NAMED)
        for key, inner in expected.items():
            if key not in value:
                raise ValueError(f"{name} has no {key}")
            check(f"{name}.{key}", value[key], inner)
    elif isinstance(expected, list):
        _check_fits(name, value, Kind("a list", lambda value: isinstance(value, list)))
        for place, item in enumerate(value):
            check(f"{name}.{place}", item, expected[0])
    else:
        _check_fits(name, value, expected)


def _check_fits(name: str, value: object, expected: Kind) -> None:
    if not expected.fits(value):
        raise ValueError(f"{name} is {show(value)}, expected {expected.words}")


def check_facts(facts: Tree) -> None:
    """About the run: how many ranks there were, and which of them trained."""
    check("facts", facts, FACTS)
    ranks, workers, servers = facts["ranks"], facts["workers"], facts["servers"]
    if not workers or any(rank >= ranks for rank in (*workers, *servers)):
        raise ValueError(
            f"facts has workers {show(workers)} and servers {show(servers)} of {ranks}"
        )


def check_common(common: Tree, facts: Tree) -> None:
    """What is the same for all ranks; it must agree on the step, and have every epoch."""
    check("common", common, COMMON)
    clock, count = common["clock"], common["run"].get("count")
    for name in ("step", "epoch"):
        if clock[name] != facts[name]:
            raise ValueError(f"common.clock.{name} is {clock[name]}, and facts has {facts[name]}")
    ended, trained = clock["epoch"], common["run"].get("trained")
    if trained is not None:  # and not validated
        check("common.run.trained", trained, _TRAINED)
        ended -= 1
    if count is not None:  # of an asynchronous run
        check("common.run.count", count, {"recorded": COUNT} | dict.fromkeys(_EPOCH_SUMS, NUMBER))
        ended = count["recorded"]
    elif common["run"]["reason"] is not None and clock["samples_in_epoch"]:
        raise ValueError(
            f"common.run.reason is {show(common['run']['reason'])}, and a run stops at the end of "
            f"an epoch, not after {clock['samples_in_epoch']} samples of it"
        )
    recorded = [record["epoch"] for record in common["history"]]
    if recorded != list(range(1, ended + 1)):
        raise ValueError(f"common.history has the epochs {show(recorded)}, expected 1 to {ended}")


_TRAINED = {"samples": COUNT, "train_loss": _or_none(NUMBER), "seconds": NUMBER, "stopped": FLAG}
_EPOCH_SUMS = ("samples", "loss", "without_loss", "since")


def check_own(name: str, own: Tree) -> None:
    """What one rank had."""
    check(name, own, OWN)
    exchange = own["exchange"]
    known = {key: kind for key, kind in EXCHANGE.items() if key in exchange}
    check(f"{name}.exchange", exchange, known)


def check_server(name: str, part: Tree) -> None:
    """What one server had of the centre."""
    check(name, part, SERVER)
    for key, array in part["state"].items():
        check(f"{name}.state.{key}", array, VECTOR)


def copy_into(vector: Vector, saved: Vector, name: str) -> None:
    """Numpy would fill a vector with a single number, and cut digits off, without a word."""
    _check_fits(name, saved, VECTOR)
    if (saved.shape, saved.dtype) != (vector.shape, vector.dtype):
        found, expected = (f"{a.dtype} of shape {a.shape}" for a in (saved, vector))
        raise ValueError(f"{name} is {found}, expected {expected}")
    vector[:] = saved
