"""Names of a Keras model's variables that are the same in every run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_COUNTED = re.compile(r"(.*?)_\d+")


def name_variables(model: Any, variables: Sequence[Any]) -> list[str]:
    """One name for each variable: its path inside the model.

    Keras numbers unnamed layers per process: the second model of a process has a dense_1 where the
    first had a dense. Here they are numbered per model.
    """
    automatic = {layer.name: _base(layer.name) for layer in model._flatten_layers() if _auto(layer)}
    renamed: dict[str, str] = {}
    counts: dict[str, int] = {}
    names: list[str] = []
    for variable in variables:
        parts = variable.path.split("/")
        if len(parts) > 1 and parts[0] == model.name:
            del parts[0]
        shown = []
        for part in parts:
            base = automatic.get(part) or _of_seeds(part)
            if base and part not in renamed:
                counts[base] = counts.get(base, -1) + 1
                renamed[part] = f"{base}_{counts[base]}" if counts[base] else base
            shown.append(renamed.get(part, part))
        names.append("/".join(shown))
    return _distinct(names)


def _auto(layer: Any) -> bool:
    """Whether the layer's name looks like Keras' default for its class."""
    return _base(layer.name).replace("_", "") == type(layer).__name__.lower()


def _base(name: str) -> str:
    found = _COUNTED.fullmatch(name)
    return found[1] if found else name


def _of_seeds(part: str) -> str | None:
    return "seed_generator" if _base(part) == "seed_generator" else None


def _distinct(names: Sequence[str]) -> list[str]:
    """Keras lets two layers inside different models have the same path."""
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return distinct
