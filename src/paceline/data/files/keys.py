"""Which arrays of a file are inputs and which are targets: as set, or by the usual names."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.nests import leaves, map_leaves
from paceline.errors import ConfigError, DataError

USUAL = (
    ("x", "y"),
    ("X", "Y"),
    ("features", "labels"),
    ("inputs", "targets"),
    ("data", "target"),
    ("images", "labels"),
)
"""Names of inputs and targets, tried in turn when you give none."""
SHOWN = 20
FORMS = (
    "a pair [inputs, targets], each of them a name, a list of names, or {name in the model: name "
    "in the file}; null for no targets"
)


@dataclass(frozen=True)
class Keys:
    """The names of inputs and of targets: one name, a tuple of them, or a dict.

    >>> Keys(("a", "b"), "y").arrange([1, 2, 3])
    ((1, 2), 3)
    """

    inputs: object
    targets: object = None

    def names(self) -> list[Any]:
        """All of them, inputs first."""
        targets = [] if self.targets is None else list(leaves(self.targets))
        return [*leaves(self.inputs), *targets]

    def arrange(self, values: Iterable[object]) -> tuple[object, object]:
        """Inputs and targets of the same structure, with these values in place of the names."""
        left = iter(values)
        inputs = map_leaves(lambda _: next(left), self.inputs)
        targets = self.targets
        return inputs, None if targets is None else map_leaves(lambda _: next(left), targets)

    def expand(self, replace: Callable[[str], object]) -> "Keys":
        """Each name replaced, by other names if it stands for several."""
        targets = self.targets
        return Keys(
            map_leaves(replace, self.inputs),
            None if targets is None else map_leaves(replace, targets),
        )


def read_keys(value: object) -> Keys | None:
    """The setting `data.keys`.

    >>> read_keys([{"image": "pixels"}, "class"])
    Keys(inputs={'image': 'pixels'}, targets='class')
    """
    if value is None or isinstance(value, Keys):
        return value
    if not isinstance(value, tuple | list) or len(value) != 2 or value[0] is None:
        raise ConfigError(f"data.keys is {value!r}, expected: {FORMS}")
    inputs, targets = (None if part is None else _read_names(part, value) for part in value)
    return Keys(inputs, targets)


def _read_names(part: object, value: object) -> object:
    if isinstance(part, str) and part:
        return part
    if isinstance(part, Mapping) and part and all(isinstance(name, str) for name in part):
        return {name: _read_names(item, value) for name, item in part.items()}
    names = part if isinstance(part, tuple | list) else ()
    if names and all(isinstance(name, str) and name for name in names):
        return tuple(names)
    raise ConfigError(f"data.keys is {value!r}, expected: {FORMS}")


def choose_keys(names: Collection[str], keys: Keys | None, path: Path, noun: str) -> Keys:
    """The keys that were set, or the first of the usual pairs that the file has."""
    if keys is None:
        for inputs, targets in USUAL:
            if inputs in names and targets in names:
                return Keys(inputs, targets)
        tried = ", ".join(f"{inputs}/{targets}" for inputs, targets in USUAL)
        raise DataError(
            f"{path} has no {noun} x or y; it has: {list_names(names)}. "
            f"Set data.keys to the names of inputs and targets (tried: {tried})"
        )
    return keys


def missing_names(missing: list[str], names: Iterable[str], path: Path, noun: str) -> DataError:
    """The error for names that a file does not have."""
    return DataError(
        f"{path} has no {noun} {' or '.join(missing)}; it has: {list_names(names)}. "
        "Set data.keys to the names of inputs and targets"
    )


def list_names(names: Iterable[str]) -> str:
    """The first of them, and how many there are."""
    found = [str(name) for name in names]
    more = f", ... ({len(found)} in all)" if len(found) > SHOWN else ""
    return f"{', '.join(found[:SHOWN]) or 'none'}{more}"
