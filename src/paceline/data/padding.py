"""Collate samples of varying length: padded to the longest of the batch, packed or nested."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from importlib import import_module
from threading import Lock
from typing import Any

import numpy as np

from paceline.core.nests import is_array, is_nest, leaves, rebuild
from paceline.core.user_code import describe_failure
from paceline.data.collate import has_target, separate, torch_has
from paceline.errors import ConfigError, DataError

Name = str | int
INPUTS = "inputs"
PLAIN = {"f": np.float32, "c": np.complex64}
"""What Python's numbers become, by numpy's kind, if not what numpy makes of them."""


@dataclass(slots=True)
class _Column:
    """One leaf of every sample: numpy arrays that are to become `dtype`, or tensors that are. They
    have the same number of axes and agree on all but the first."""

    place: str
    arrays: list[Any]
    shapes: list[tuple[int, ...]]
    dtype: Any
    of_torch: bool

    @property
    def lengths(self) -> list[int]:
        return [shape[0] for shape in self.shapes]


@dataclass(slots=True)
class _Call:
    """One batch in the making: whether tensors are wanted, and what the inputs were like."""

    by_torch: bool
    in_targets: bool = False
    lengths: list[int] | None = None
    elements: int = 0
    padding: int = 0
    offsets: dict[tuple[int, ...], Any] = field(default_factory=dict)


class _ByLength(ABC):
    """Collate leaf by leaf: sequences as a subclass does it, numbers and fixed leaves stacked."""

    _tensors_only = False

    def __init__(self, *, fixed: Name | Collection[Name] = (), fixed_targets: bool = False) -> None:
        self.fixed = (fixed,) if isinstance(fixed, Name) else tuple(fixed)
        self.fixed_targets = fixed_targets
        self._start_counting()

    def __call__(self, samples: list[Any]) -> Any:
        """The inputs, or a pair (inputs, targets) if the samples are pairs."""
        inputs, targets = separate(samples, has_target)
        self._check_names(inputs[0])
        call = _Call(self._by_torch(samples[0]))
        joined = self._finish(self._join(inputs, INPUTS, call, False), call)
        call.in_targets = True
        if targets is not None:
            targets = self._join(targets, "targets", call, self.fixed_targets)
        with self._lock:
            self.elements += call.elements
            self.padding += call.padding
        # Inputs that are two, alone, would be taken for inputs and targets.
        alone = targets is None and not (isinstance(joined, tuple | list) and len(joined) == 2)
        return joined if alone else (joined, targets)

    @property
    def padding_share(self) -> float:
        """Padding per element, from 0 to 1."""
        with self._lock:
            return self.padding / self.elements if self.elements else 0.0

    def __getstate__(self) -> dict[str, Any]:
        """The settings: a copy counts for itself."""
        own = ("_lock", "elements", "padding")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start_counting()

    def _start_counting(self) -> None:
        self._lock = Lock()
        self.elements = self.padding = 0

    def _check_names(self, inputs: object) -> None:
        names = _list_keys(inputs) if self.fixed and _is_branch(inputs) else []
        for name in self.fixed:
            if name not in names:
                raise DataError(f"fixed names {name!r}, and the inputs are {_describe(inputs)}")

    def _join(self, values: list[Any], place: str, call: _Call, fixed: bool) -> Any:
        if _is_branch(values[0]):
            return self._join_branch(values, place, call, fixed)
        if all(type(value) in (int, float) for value in values):  # for speed: labels often are
            numbers = np.array(values)
            return _hand_over(numbers.astype(_find_dtype(values, [numbers], place)), call)
        column = _read_column(values, place)
        if fixed or not column.shapes[0]:
            return _stack(column, call)
        if call.lengths is None:
            call.lengths = column.lengths
        return self._join_sequences(column, call)

    def _join_branch(self, values: list[Any], place: str, call: _Call, fixed: bool) -> Any:
        """Item by item, as the first sample has them."""
        first = values[0]
        keys = _list_keys(first)
        for value in values:
            if set(_list_keys(value)) != set(keys):
                raise DataError(
                    f"{place} are {_describe(first)} in one sample and {_describe(value)} in "
                    "another; all must have the same parts. A sequence is a list of numbers or an "
                    "array, not a tuple"
                )
        joined = []
        for key in keys:
            below = fixed or (place == INPUTS and key in self.fixed)
            items = [value[key] for value in values]
            joined.append(self._join(items, f"{place}[{key!r}]", call, below))
        if isinstance(first, Mapping):
            return dict(zip(keys, joined, strict=True))
        return rebuild(first, joined)

    def _by_torch(self, sample: Any) -> bool:
        return self._tensors_only or any(torch_has(leaf, "Tensor") for leaf in leaves(sample))

    @abstractmethod
    def _join_sequences(self, column: _Column, call: _Call) -> Any:
        """The sequences of one leaf, as one."""

    def _finish(self, inputs: Any, call: _Call) -> Any:
        return inputs


class Pad(_ByLength):
    """Pad every sequence to the longest of the batch, rounded up to a multiple.

    A sample is inputs or a pair (inputs, target), each a list of numbers, an array, a tensor, or a
    dict or tuple of these. A leaf's first axis is its length. Numbers are stacked, and so are
    leaves that have the same shape in all samples of a batch. Tensors give tensors, anything else
    numpy arrays.

    With a multiple above 1 every leaf with an axis counts as a sequence. Name those that are not:
    `fixed` are names of the inputs (positions, if they are a tuple), `fixed_targets` is for vectors
    such as one-hot labels. Targets are padded with -100, which torch's cross entropy ignores.
    `with_lengths` makes the inputs a pair (padded, lengths of the first sequence).

    `elements` counts all elements of the inputs that are sequences, over all batches so far;
    `padding` those that are padding; `padding_share` is their quotient.

    >>> pad = Pad()
    >>> pad([[3, 1, 4], [1]])
    array([[3, 1, 4],
           [1, 0, 0]])
    >>> pad.elements, pad.padding
    (6, 2)
    """

    def __init__(
        self,
        padding_value: float = 0,
        pad_to_multiple_of: int = 1,
        *,
        target_padding_value: float = -100,
        with_lengths: bool = False,
        fixed: Name | Collection[Name] = (),
        fixed_targets: bool = False,
    ) -> None:
        super().__init__(fixed=fixed, fixed_targets=fixed_targets)
        multiple = pad_to_multiple_of
        if not isinstance(multiple, int) or isinstance(multiple, bool) or multiple < 1:
            raise ConfigError(f"pad_to_multiple_of is {multiple!r}, expected an integer above 0")
        for value in (padding_value, target_padding_value):
            if not isinstance(value, int | float):
                raise ConfigError(f"a padding value is {value!r}, expected a number")
        self.padding_value = padding_value
        self.pad_to_multiple_of = multiple
        self.target_padding_value = target_padding_value
        self.with_lengths = with_lengths

    def _join_sequences(self, column: _Column, call: _Call) -> Any:
        lengths = column.lengths
        tail = column.shapes[0][1:]
        width = -(-max(lengths) // self.pad_to_multiple_of) * self.pad_to_multiple_of
        elements = len(lengths) * width * math.prod(tail)
        padding = elements - sum(lengths) * math.prod(tail)
        if not call.in_targets:
            call.elements += elements
            call.padding += padding
        value = self._choose_value(column, call) if padding else 0
        if column.of_torch:
            return _pad_tensors(column.arrays, width, value)
        padded = np.full((len(lengths), width, *tail), value, column.dtype)
        for row, array, length in zip(padded, column.arrays, lengths, strict=True):
            row[:length] = array
        return _hand_over(padded, call)

    def _choose_value(self, column: _Column, call: _Call) -> float:
        name = "target_padding_value" if call.in_targets else "padding_value"
        value: float = getattr(self, name)
        if not _can_hold(column.dtype, value):
            raise DataError(
                f"{name} is {value}, which {column.dtype} cannot hold, the type of {column.place}; "
                "give another value, or samples of another type"
            )
        return value

    def _finish(self, inputs: Any, call: _Call) -> Any:
        if not self.with_lengths:
            return inputs
        if call.lengths is None:
            raise DataError("with_lengths is set, and no input is a sequence: omit it")
        return inputs, _hand_over(np.array(call.lengths, np.int64), call)


class Pack(_ByLength):
    """Pack every sequence of a batch into a PackedSequence, which torch's RNN, LSTM and GRU take.

    Samples are as for Pad; every leaf with an axis is packed unless it is fixed. Nothing is padded.
    """

    _tensors_only = True

    def __init__(
        self,
        enforce_sorted: bool = False,
        *,
        fixed: Name | Collection[Name] = (),
        fixed_targets: bool = False,
    ) -> None:
        super().__init__(fixed=fixed, fixed_targets=fixed_targets)
        self.enforce_sorted = enforce_sorted

    def _join_sequences(self, column: _Column, call: _Call) -> Any:
        if not all(column.lengths):
            raise DataError(
                f"{column.place} hold an empty sequence, which torch cannot pack; use Pad or "
                "Nest, or drop such samples"
            )
        rnn = _torch("torch.nn.utils.rnn")
        return rnn.pack_sequence(_tensors(column), enforce_sorted=self.enforce_sorted)


class Nest(_ByLength):
    """Join every sequence of a batch in a nested tensor with layout torch.jagged.

    Samples are as for Pad; every leaf with an axis is nested unless it is fixed. Nothing is padded.
    Leaves of the same lengths, such as tokens and their labels, can be combined by torch.
    """

    _tensors_only = True

    def _join_sequences(self, column: _Column, call: _Call) -> Any:
        torch = _torch()
        tensors = _tensors(column)
        lengths = tuple(column.lengths)
        if lengths not in call.offsets:  # torch compares offsets by identity
            ends = np.cumsum([0, *lengths], dtype=np.int64)
            call.offsets[lengths] = torch.from_numpy(ends).to(tensors[0].device)
        return torch.nested.nested_tensor_from_jagged(torch.cat(tensors), call.offsets[lengths])


def _torch(module: str = "torch") -> Any:
    return import_module(module)


def _is_branch(value: Any) -> bool:
    """Whether it is a nest; a list of numbers of numpy or torch is not."""
    is_list = isinstance(value, list)
    return is_nest(value) and not (is_list and all(getattr(v, "shape", 0) == () for v in value))


def _list_keys(branch: object) -> list[Any]:
    if isinstance(branch, Mapping):
        return list(branch)
    return list(range(len(branch))) if isinstance(branch, tuple | list) else []


def _describe(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a dict of {', '.join(map(repr, value))}"
    name = type(value).__name__
    return f"a {name} of {len(value)}" if isinstance(value, tuple | list) else f"a {name}"


def _read_column(values: list[Any], place: str) -> _Column:
    of_torch = torch_has(values[0], "Tensor")
    kind, read = type(values[0]), _torch().as_tensor if of_torch else np.asarray
    try:
        arrays = [value if of_torch and type(value) is kind else read(value) for value in values]
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{place} cannot become arrays: {describe_failure(error)}") from error
    shapes = [tuple(array.shape) for array in arrays]
    if len({(len(shape), shape[1:]) for shape in shapes}) > 1:
        _agree_on_axes(values, arrays, shapes, place)
    dtype = _promote(arrays) if of_torch else _find_dtype(values, arrays, place)
    return _Column(place, arrays, shapes, dtype, of_torch)


def _agree_on_axes(
    values: list[Any], arrays: list[Any], shapes: list[tuple[int, ...]], place: str
) -> None:
    """Give empty lists the axes of the others; refuse what differs in an axis after the first."""
    empty = [isinstance(value, list) and not value for value in values]
    like = shapes[empty.index(False)]
    for number, shape in enumerate(shapes):
        if empty[number] and like:
            shapes[number] = (0, *like[1:])
            arrays[number] = arrays[number].reshape(shapes[number])
        elif len(shape) != len(like) or shape[1:] != like[1:]:
            raise DataError(
                f"{place} have shape {like} in one sample and {shape} in another; all axes but "
                "the first must agree"
            )


def _promote(tensors: list[Any]) -> Any:
    """The type that holds all, as in _find_dtype; the tensors become it."""
    dtype = tensors[0].dtype
    if any(tensor.dtype != dtype for tensor in tensors):
        full = {tensor.dtype for tensor in tensors if tensor.numel()} or {dtype}
        dtype = reduce(_torch().promote_types, full)
        tensors[:] = [tensor.to(dtype) for tensor in tensors]
    return dtype


def _find_dtype(values: list[Any], arrays: list[np.ndarray], place: str) -> np.dtype:
    """The type that holds all. What is empty counts only if all are: np.array([]) is float64."""
    plain = not any(map(is_array, values))
    empty = {np.dtype(np.int64)} if plain else {array.dtype for array in arrays}
    dtype = np.result_type(*({array.dtype for array in arrays if array.size} or empty))
    if dtype.kind in "OSU":
        raise DataError(f"{place} are {_describe(values[0])}, expected numbers, arrays or tensors")
    return np.dtype(PLAIN.get(dtype.kind, dtype) if plain else dtype)


def _can_hold(dtype: object, value: float) -> bool:
    """Whether a type holds the value exactly; floats hold all, as well as they can."""
    name = str(dtype).removeprefix("torch.")
    if not name.startswith(("int", "uint", "bool")):
        return True
    with np.errstate(invalid="ignore"):
        return bool(np.array(value).astype(name) == value)


def _stack(column: _Column, call: _Call) -> Any:
    other = next((shape for shape in column.shapes if shape != column.shapes[0]), None)
    if other is not None:
        raise DataError(
            f"{column.place} have shape {column.shapes[0]} in one sample and {other} in another, "
            "and are said to be fixed"
        )
    if column.of_torch:
        return _torch().stack(column.arrays)
    return _hand_over(np.array(column.arrays, dtype=column.dtype), call)


def _hand_over(array: np.ndarray, call: _Call) -> Any:
    return _torch().from_numpy(array) if call.by_torch else array


def _pad_tensors(tensors: list[Any], width: int, value: float) -> Any:
    rnn = _torch("torch.nn.utils.rnn")
    padded = rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
    more = width - padded.shape[1]
    if not more:
        return padded
    sides = [0, 0] * (padded.ndim - 2) + [0, more]
    return _torch().nn.functional.pad(padded, sides, value=value)


def _tensors(column: _Column) -> list[Any]:
    if column.of_torch:
        return column.arrays
    torch = _torch()
    return [torch.from_numpy(array.astype(column.dtype)) for array in column.arrays]
