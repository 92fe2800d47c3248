"""What each sample costs: one number per sample, from whatever you say.

A cost decides which rank gets which samples; it never weighs the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import SupportsFloat

import numpy as np

from paceline.core.nests import is_array, leaves
from paceline.core.user_code import describe_failure
from paceline.core.vectors import Vector
from paceline.data.collate import has_target
from paceline.data.sources import ArraySource, Samples, Source
from paceline.errors import ConfigError, DataError, PacelineError

LENGTH = "length"
FORMS = (
    "length, the name of one of the inputs, {power: 2} (of the length; {of: NAME, power: 2} of an "
    "input); in Python also an array or a function of a sample"
)


def read_numbers(source: Source, spec: object, what: str = "cost") -> Vector:
    """A number of 0 or more for every sample, as `spec` says: see FORMS.

    >>> from paceline.data import as_source
    >>> read_numbers(as_source([[3, 1, 4], [1, 5]]), {"power": 2}).tolist()
    [9.0, 4.0]
    """
    if isinstance(spec, Mapping):
        of, power = _read_power(spec, what)
        return check_numbers(read_numbers(source, of, what) ** power, len(source), what)
    if isinstance(spec, str):
        found = _lengths(source, what) if spec == LENGTH else _column(source, spec, what)
    elif callable(spec):
        found = _call(spec, source, what)
    else:
        found = _as_vector(spec, what)
    return check_numbers(found, len(source), what)


def check_form(spec: object, what: str = "cost") -> None:
    """A ConfigError unless it is one of FORMS, as far as that shows without the data."""
    if spec is None or isinstance(spec, str) or callable(spec):
        return
    if isinstance(spec, Mapping):
        _read_power(spec, what)
    else:
        _as_vector(spec, what)


def check_numbers(found: Vector, samples: int, what: str) -> Vector:
    """Refuse what is no number of 0 or more for each of so many samples."""
    if found.shape != (samples,):
        shape = f"{len(found):,} numbers" if found.ndim == 1 else f"numbers of shape {found.shape}"
        raise DataError(f"{what} has {shape}, and the data {samples:,} samples; give one for each")
    bad = np.flatnonzero(~np.isfinite(found) | (found < 0))
    if len(bad):
        several = f" (and of {len(bad) - 1} others)" if len(bad) > 1 else ""
        raise DataError(
            f"{what} of sample {bad[0]} is {found[bad[0]]}{several}, expected a finite number of 0 "
            "or more"
        )
    return found


def _read_power(spec: Mapping[object, object], what: str) -> tuple[object, float]:
    rest = dict(spec)
    of, power = rest.pop("of", LENGTH), rest.pop("power", 1.0)
    fits = isinstance(power, int | float) and not isinstance(power, bool) and math.isfinite(power)
    if rest or not fits or isinstance(of, Mapping):
        raise ConfigError(f"{what} is {dict(spec)!r}, expected: {FORMS}")
    assert isinstance(power, int | float)
    return of, float(power)


def _as_vector(spec: object, what: str) -> Vector:
    try:
        return np.asarray(spec, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{what} is a {type(spec).__name__}, expected: {FORMS} ({describe_failure(error)})"
        ) from error


def _call(function: Callable[[object], SupportsFloat], source: Source, what: str) -> Vector:
    numbers = np.empty(len(source))
    samples = Samples(source)
    for number in range(len(samples)):
        try:
            numbers[number] = float(function(samples[number]))
        except PacelineError:
            raise
        except Exception as error:
            raise DataError(
                f"{what} of sample {number} of {source.name}: {describe_failure(error)}"
            ) from error
    return numbers


def _lengths(source: Source, what: str) -> Vector:
    if isinstance(source, ArraySource):
        ragged = _ragged(source)
        if ragged is None:
            raise DataError(
                f"{what} is length, and all samples of {source.name} have the same: they lie in "
                f"dense arrays. Give {what} as an array (the number of tokens of each sample), or "
                "a list of samples instead of the array"
            )
        return np.array([len(item) for item in ragged], float)
    return _call(_length, source, what)


def _ragged(source: ArraySource) -> Vector | None:
    """The first array of objects, each of its own length."""
    arrays = (leaf for leaf in leaves(source.inputs) if isinstance(leaf, np.ndarray))
    return next((array for array in arrays if array.dtype.hasobject), None)


def _length(sample: object) -> int:
    """Of the first of its inputs that has one, else of its target."""
    for leaf in leaves(tuple(sample) if has_target(sample) else sample):
        if is_array(leaf):
            if len(leaf.shape):
                return int(leaf.shape[0])
        elif hasattr(leaf, "__len__"):
            return len(leaf)
    raise DataError(f"a {type(sample).__name__} has no length; give cost as an array or a function")


def _column(source: Source, name: str, what: str) -> Vector:
    """A named number of each sample: an array of its own, or an entry of each."""
    if isinstance(source, ArraySource):
        for part in (source.inputs, source.targets):
            if isinstance(part, Mapping) and name in part:
                return _as_vector(part[name], what)
        raise DataError(f"{what} is {name!r}, and {source.name} has no array of this name")

    def entry(sample: object) -> SupportsFloat:
        parts = sample if isinstance(sample, tuple | list) else (sample,)
        for part in parts:
            if isinstance(part, Mapping) and name in part:
                found: SupportsFloat = part[name]
                return found
        raise DataError(f"there is no entry {name!r}; {what} is one of: {FORMS}")

    return _call(entry, source, what)
