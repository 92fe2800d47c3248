"""Collate samples into a batch: by numpy, or by torch where the samples hold tensors."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeGuard

import numpy as np

from paceline.core.nests import is_nest, leaves, rebuild
from paceline.core.user_code import describe_failure
from paceline.data.batch import Batch
from paceline.errors import DataError

Collate = Callable[[list[Any]], object]


def collate_samples(
    samples: Sequence[object],
    indices: np.ndarray,
    *,
    collate: Collate | None = None,
    by_torch: bool = False,
    name: str = "the data",
) -> Batch:
    """Collate samples into a batch; a sample that is a pair is (inputs, target), else inputs only.

    The user's `collate` gets the list of samples and may return such a pair itself. Without it,
    samples that hold torch tensors, or all of them if `by_torch`, go through torch's
    default_collate; the others are stacked by numpy.
    """
    try:
        inputs, targets = _join(samples, collate, by_torch)
    except Exception as error:
        places = Batch(None, None, len(samples), indices).where()
        advice = "Let all samples have one shape, or pass a collate function (paceline.data.Pad)"
        raise DataError(
            f"{places} of {name} cannot be collated into a batch: {describe_failure(error)}. "
            f"{advice if collate is None else 'Look at your collate function'}"
        ) from error
    return Batch(inputs, targets, len(samples), indices)


def torch_has(value: object, *names: str) -> bool:
    """Whether value is an instance of that torch class, without importing torch to find out."""
    found: object = sys.modules.get("torch")
    for name in names:
        found = getattr(found, name, None)
    return isinstance(found, type) and isinstance(value, found)


def separate(
    samples: Sequence[object], is_pair: Callable[[object], TypeGuard[Sequence[object]]]
) -> tuple[list[Any], list[Any] | None]:
    """The inputs of samples, and their targets if they have any."""
    pairs = [sample for sample in samples if is_pair(sample)]
    if not pairs:
        return list(samples), None
    if len(pairs) < len(samples):
        raise DataError(
            "some samples are (inputs, target) pairs and some are not (a list of two may be taken "
            "for one; make pairs tuples, and sequences arrays)"
        )
    targets = [pair[1] for pair in pairs]
    without = all(target is None for target in targets)
    return [pair[0] for pair in pairs], None if without else targets


def has_target(sample: object) -> TypeGuard[Sequence[object]]:
    """Whether a sample is a pair (inputs, target), where samples may be sequences: a list of two
    plain numbers is one, of length 2."""
    if not _is_pair(sample):
        return False
    first = sample[0]
    is_number = not hasattr(first, "__len__") or getattr(first, "shape", None) == ()
    return isinstance(sample, tuple) or not is_number


def _join(
    samples: Sequence[object], collate: Collate | None, by_torch: bool
) -> tuple[object, object]:
    if collate is not None:
        joined = collate(list(samples))
        return (joined[0], joined[1]) if _is_pair(joined) else (joined, None)
    if by_torch or any(torch_has(leaf, "Tensor") for leaf in leaves(samples[0])):
        # torch is loaded already: the samples come from it.
        collate = import_module("torch.utils.data").default_collate
    else:
        collate = _stack
    if not _is_pair(samples[0]):
        return collate(list(samples)), None
    inputs, targets = separate(samples, _is_pair)
    return collate(inputs), None if targets is None else collate(targets)


def _is_pair(sample: object) -> TypeGuard[Sequence[object]]:
    return isinstance(sample, (tuple, list)) and len(sample) == 2


def _stack(values: list[Any]) -> object:
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _stack([value[key] for value in values]) for key in first}
    if is_nest(first):
        columns = [list(column) for column in zip(*values, strict=True)]
        return rebuild(first, [_stack(column) for column in columns])
    stacked = np.stack([np.asarray(value) for value in values])
    if stacked.dtype == object:
        raise TypeError(f"{type(first).__name__} cannot be stacked by numpy")
    return stacked
