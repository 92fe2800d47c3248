"""What is wrong with settings, in one sentence each: which key, its value, what was expected."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from paceline.config.messages import one_line, show, show_key
from paceline.config.optimizer import OptimizerConfig
from paceline.config.run import RunConfig
from paceline.config.schedules import Constant, Cosine, Step
from paceline.config.setting import field_names, sections_of
from paceline.config.stopping import StopConfig, parse_target
from paceline.core.suggestions import nearest


def explain(error: ValidationError) -> list[str]:
    """A sentence for each of pydantic's findings."""
    return [_explain(fault) for fault in _relevant(error.errors())]


def find_useless_numbers(config: RunConfig) -> list[str]:
    """What is wrong with numbers that are not finite, or too large for any use. Which settings a
    rule or an optimizer has is its own affair, but none works with these."""
    return list(_useless_numbers("", config))


_SECTIONS = {
    name: classes[0]
    for name, field in RunConfig.model_fields.items()
    if len(classes := sections_of(field.annotation)) == 1
}
_SCHEDULES = {str(kind.model_fields["name"].default): kind for kind in (Constant, Step, Cosine)}
_ELSEWHERE = {
    name: f"{section}.{name}"
    for section, kind in _SECTIONS.items()
    for name in field_names(kind)
    if name not in RunConfig.model_fields
}
"""Settings that people look for on the top level, and where they are."""


def _relevant(faults: list[ErrorDetails]) -> list[ErrorDetails]:
    """Of an optimizer that is neither settings nor a function, what is wrong with the settings."""
    named = {fault["loc"][:1] for fault in faults if fault["loc"][-1:] != ("callable",)}
    return [f for f in faults if f["loc"][-1:] != ("callable",) or f["loc"][:1] not in named]


def _explain(fault: ErrorDetails) -> str:
    kinds = ("OptimizerConfig", "callable", *(["str"] if fault["loc"][:1] == ("loss",) else []))
    place = [str(part) for part in fault["loc"] if part not in kinds]
    name = ".".join(part for part in place if part not in _SCHEDULES)
    if fault["type"] == "extra_forbidden":
        return _explain_unknown(name, place)
    if place == ["optimizer"]:
        return (
            f"optimizer is a {type(fault['input']).__name__}, expected a name, settings "
            "({name: ..., lr: ...}) or a function of the parameters"
        )
    if fault["type"] == "union_tag_invalid":
        *most, last = _SCHEDULES
        expected = f"{', '.join(most)} or {last}"
        return f"{name}.name is {show(fault['ctx']['tag'])}, expected {expected}"
    message = fault["msg"].removeprefix("Value error, ")
    if message.startswith(("rule", "exchange", "stop.", "no model")):
        return one_line(message)
    return f"{show_key(name)} is {show(fault['input'])}, expected: {_expectation(message)}"


def _explain_unknown(name: str, place: list[str]) -> str:
    known = _SECTIONS | _SCHEDULES
    section = next((known[part] for part in reversed(place[:-1]) if part in known), RunConfig)
    valid = field_names(section)
    near = nearest(place[-1], valid)
    meant = _ELSEWHERE.get(name) or (near and f"{name.removesuffix(place[-1])}{near}")
    hint = f"did you mean {meant}? " if meant else ""
    return f"{show_key(name)} is not a setting; {hint}(valid here: {', '.join(valid)})"


def _expectation(message: str) -> str:
    return message.removeprefix("Input should be ").split(", unable to")[0]


def _useless_numbers(name: str, value: object) -> Iterator[str]:
    if name in _OBJECTS:
        return
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{name} is {value}, expected: a finite number"
    elif isinstance(value, int) and abs(value) >= _TOO_LARGE:
        yield f"{name} is {show(value)}, expected: a number below 2**63"
    for key, item in _items(value):
        yield from _useless_numbers(f"{name}.{key}" if name else key, item)


_OBJECTS = ("model", "loss", "data.train", "data.validation")
"""Settings that may be an object or the data itself, with numbers of its own."""
_TOO_LARGE = 2**63


def _items(value: object) -> list[tuple[str, object]]:
    """The settings within a section, or the values within a setting."""
    if isinstance(value, OptimizerConfig):
        return list(value.settings().items())
    if isinstance(value, StopConfig) and value.target is not None:
        return [*value, ("target", parse_target(value.target)[2])]
    if isinstance(value, BaseModel):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, tuple | list):
        return [(str(place), item) for place, item in enumerate(value)]
    return []
