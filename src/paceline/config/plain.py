"""Settings as plain values that YAML can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

import numpy as np


def as_plain(value: object) -> object:
    """Plain values unchanged; data and functions as their kind, `<Sequential>`."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, dict):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list) and len(value) <= 16 and not _holds_data(value):
        return [as_plain(item) for item in value]
    return f"<{getattr(value, '__qualname__', type(value).__qualname__)}>"


def names_as_plain(keys: object) -> object:
    """Names, and lists and mappings of names, however many."""
    if isinstance(keys, Mapping):
        return {name: names_as_plain(item) for name, item in keys.items()}
    return [names_as_plain(item) for item in keys] if isinstance(keys, tuple | list) else keys


def is_placeholder(value: object) -> TypeGuard[str]:
    """Whether `as_plain` wrote this in the place of an object."""
    return isinstance(value, str) and value.startswith("<") and value.endswith(">")


def _holds_data(value: tuple | list) -> bool:
    return any(hasattr(item, "__len__") and not isinstance(item, str) for item in value)
