"""Small values as bytes, without pickle: data from another rank cannot run code here.

JSON for what JSON knows; everything else is an object with a single `$...` key. Of classes only
Paceline's own dataclasses, named tuples and errors can be sent.
"""

# Values of any type pass through here.
# mypy: disable-error-code="explicit-any"

from __future__ import annotations

import base64
import dataclasses
import json
import math
import sys
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from paceline import errors

_OURS = "paceline."


def to_bytes(value: object) -> bytes:
    """Encode a value."""
    return json.dumps(_pack(value), allow_nan=False, separators=(",", ":")).encode()


def from_bytes(data: bytes) -> Any:
    """Decode a value.

    >>> from_bytes(to_bytes({"a": (1, {2.5, None})}))
    {'a': (1, {2.5, None})}
    """
    return _unpack(json.loads(data))


def _pack(value: object) -> Any:
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if type(value) is list:
        return [_pack(item) for item in value]
    if isinstance(value, dict):
        return {"$dict": [[_pack(key), _pack(item)] for key, item in value.items()]}
    for kind, (name, pack, _) in _KINDS.items():
        if isinstance(value, kind):
            return {name: pack(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _pack(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"$data": [_name_of(type(value)), fields]}
    raise TypeError(
        f"a {type(value).__name__} cannot be sent to other ranks; send plain values: numbers, "
        "text, lists, tuples, dicts, sets, arrays"
    )


def _unpack(packed: Any) -> Any:
    if isinstance(packed, list):
        return [_unpack(item) for item in packed]
    if not isinstance(packed, dict):
        return packed
    ((name, content),) = packed.items()
    if name == "$float":
        return float(content)
    if name == "$dict":
        return {_unpack(key): _unpack(item) for key, item in content}
    if name == "$data":
        kind = _class_of(content[0])
        return kind(**{key: _unpack(item) for key, item in content[1].items()})
    return _UNPACK[name](content)


def _pack_tuple(value: tuple[Any, ...]) -> Any:
    name = _name_of(type(value)) if hasattr(value, "_fields") else None
    return [name, [_pack(item) for item in value]]


def _unpack_tuple(content: Any) -> Any:
    name, items = content
    values = [_unpack(item) for item in items]
    return tuple(values) if name is None else _class_of(name)(*values)


def _pack_array(value: Any) -> Any:
    if value.dtype.hasobject:
        raise TypeError("an array of objects cannot be sent to other ranks; convert it to numbers")
    array = np.ascontiguousarray(value)
    data = base64.b64encode(array.tobytes()).decode()
    return [array.dtype.str, list(value.shape), data, isinstance(value, np.ndarray)]


def _unpack_array(content: Any) -> Any:
    dtype, shape, data, whole = content
    array = np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape).copy()
    return array if whole else array[()]


def _pack_error(value: errors.PacelineError) -> Any:
    return [type(value).__name__, str(value), getattr(value, "code", None)]


def _unpack_error(content: Any) -> errors.PacelineError:
    name, text, code = content
    kind = getattr(errors, name)
    assert issubclass(kind, errors.PacelineError)
    error: errors.PacelineError = kind(text) if code is None else kind(text, code)
    return error


def _name_of(kind: type) -> str:
    if not kind.__module__.startswith(_OURS):
        raise TypeError(
            f"a {kind.__qualname__} cannot be sent to other ranks; only classes of Paceline can"
        )
    return f"{kind.__module__}:{kind.__qualname__}"


def _class_of(name: str) -> Any:
    module, _, path = name.partition(":")
    if not module.startswith(_OURS):
        raise ValueError(f"another rank sent a {name!r}, which is not of Paceline")
    found: Any = sys.modules.get(
        module
    )  # all ranks run the same program, so it is loaded here, too
    for part in path.split("."):
        found = getattr(found, part, None)
    if not (
        isinstance(found, type) and (dataclasses.is_dataclass(found) or hasattr(found, "_fields"))
    ):
        raise ValueError(f"another rank sent a {name!r}, which is not a dataclass or named tuple")
    return found


_KINDS: dict[Any, tuple[str, Any, Any]] = {
    tuple: ("$tuple", _pack_tuple, _unpack_tuple),
    set | frozenset: (
        "$set",
        lambda value: [isinstance(value, frozenset), [_pack(item) for item in value]],
        lambda content: (frozenset if content[0] else set)(map(_unpack, content[1])),
    ),
    bytes: ("$bytes", lambda v: base64.b64encode(v).decode(), base64.b64decode),
    PurePath: ("$path", str, Path),
    np.ndarray | np.generic: ("$array", _pack_array, _unpack_array),
    np.dtype: ("$dtype", lambda value: value.str, np.dtype),
    errors.PacelineError: ("$error", _pack_error, _unpack_error),
    int: ("$int", int, int),
}
_UNPACK = {name: unpack for name, _, unpack in _KINDS.values()}
