"""Data with random access: any samples can be taken, in any order."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from paceline.core.nests import is_array, leaves, map_leaves
from paceline.core.user_code import describe_failure
from paceline.data.batch import Batch
from paceline.data.collate import Collate, collate_samples, torch_has
from paceline.data.files.file_guard import FileGuard
from paceline.errors import DataError, PacelineError


@runtime_checkable
class Source(Protocol):
    """Samples by number. `cheap`: a batch is a plain gather in memory, so prefetching costs more
    than it saves."""

    name: str
    cheap: bool

    def __len__(self) -> int: ...

    def take(self, indices: np.ndarray) -> Batch:
        """The batch of these samples, in this order."""
        ...


class ArraySource:
    """Samples along the first axis of arrays: numpy, memory-mapped, torch, or nests of them.

    Anything that has a length and can be indexed by an int64 array will do. `transform` maps the
    gathered inputs of every batch, so that images can stay small in memory. `files` hold the
    arrays, and must not change.

    >>> ArraySource(np.arange(6).reshape(3, 2), np.array([0, 1, 0])).take(np.array([2, 0])).inputs
    array([[4, 5],
           [0, 1]])
    """

    def __init__(
        self,
        inputs: Any,
        targets: Any = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        name: str = "arrays",
        files: Sequence[FileGuard] = (),
    ) -> None:
        self.name = name
        self._files = files
        self.inputs = map_leaves(_as_indexable, inputs)
        self.targets = None if targets is None else map_leaves(_as_indexable, targets)
        self.transform = transform
        self._length = _agree_on_length(self.arrays(), name)
        in_memory = not any(_is_mapped(leaf) for leaf in self.arrays())
        self.cheap = in_memory and transform is None

    def __len__(self) -> int:
        return self._length

    def take(self, indices: np.ndarray) -> Batch:
        indices = np.ascontiguousarray(indices, dtype=np.int64)
        # Before, since reading beyond the end of a truncated mapped file ends the process by
        # SIGBUS; after, since it may have been written to meanwhile.
        self.check_files()
        try:
            batch = self._gather(indices)
        except PacelineError:
            raise
        except Exception as error:
            where = Batch(None, None, len(indices), indices).where()
            raise _unreadable(where, self.name, error) from error
        self.check_files()
        return batch

    def _gather(self, indices: np.ndarray) -> Batch:
        inputs = map_leaves(lambda leaf: _gather(leaf, indices), self.inputs)
        if self.transform is not None:
            inputs = self.transform(inputs)
        targets = None
        if self.targets is not None:
            targets = map_leaves(lambda leaf: _gather(leaf, indices), self.targets)
        return Batch(inputs, targets, len(indices), indices)

    def check_files(self) -> None:
        """Raise if a file that holds the arrays has changed."""
        for file in self._files:
            file.check()

    def arrays(self) -> list[Any]:
        """The arrays of the inputs, then those of the targets."""
        targets = [] if self.targets is None else list(leaves(self.targets))
        return [*leaves(self.inputs), *targets]


class DatasetSource:
    """Any map-style dataset: it has a length and gives one sample per number.

    A sample that is a pair is (inputs, target). Samples are read by a background thread unless
    prefetching is off: a dataset that draws from torch's global random generator, as the model's
    dropout does, repeats exactly only with prefetch 0.
    """

    cheap = False

    def __init__(
        self, dataset: Any, *, collate: Collate | None = None, name: str | None = None
    ) -> None:
        self.dataset = dataset
        self.collate = collate
        self.name = name or type(dataset).__name__
        self._by_torch = torch_has(dataset, "utils", "data", "Dataset")
        try:
            self._length = len(dataset)
        except PacelineError:
            raise
        except (TypeError, NotImplementedError) as error:
            raise DataError(
                f"{self.name} has no length; give it __len__, or make it iterable"
            ) from error
        except Exception as error:
            raise DataError(
                f"the length of {self.name} cannot be read: {describe_failure(error)}"
            ) from error
        _refuse_empty(self._length, self.name)

    def __len__(self) -> int:
        return self._length

    def take(self, indices: np.ndarray) -> Batch:
        return collate_samples(
            self._read(indices),
            indices,
            collate=self.collate,
            by_torch=self._by_torch,
            name=self.name,
        )

    def _read(self, indices: np.ndarray) -> list[Any]:
        numbers = [int(index) for index in indices]
        if getattr(self.dataset, "__getitems__", None):
            try:
                return list(self.dataset.__getitems__(numbers))
            except PacelineError:
                raise
            except Exception as error:
                where = Batch(None, None, len(numbers), indices).where()
                raise _unreadable(where, self.name, error) from error
        samples = []
        for number in numbers:
            try:
                samples.append(self.dataset[number])
            except PacelineError:
                raise
            except Exception as error:
                raise _unreadable(f"sample {number}", self.name, error) from error
        return samples


class Samples:
    """The samples of a source one by one: inputs, or a pair (inputs, target)."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, number: int) -> Any:
        source = self._source
        if isinstance(source, DatasetSource):
            return source.dataset[number]
        batch = source.take(np.array([number]))
        inputs = map_leaves(lambda leaf: leaf[0], batch.inputs)
        if batch.targets is None:
            return inputs
        return inputs, map_leaves(lambda leaf: leaf[0], batch.targets)


def _as_indexable(leaf: Any) -> Any:
    if isinstance(leaf, list):
        try:
            return np.asarray(leaf)
        except ValueError as error:
            raise DataError(f"a list cannot become an array: {describe_failure(error)}") from error
    if isinstance(leaf, (str, bytes)) or not hasattr(leaf, "__getitem__"):
        raise DataError(f"a {type(leaf).__name__} is not an array; pass arrays or tensors")
    return leaf


def _agree_on_length(arrays: list[Any], name: str) -> int:
    lengths = [_length(array, name) for array in arrays]
    if not lengths:
        raise DataError(f"{name} holds no arrays")
    for length in lengths:
        if length != lengths[0]:
            raise DataError(
                f"{name} holds arrays of {lengths[0]} and of {length} samples; "
                "all must have the same leading length"
            )
    _refuse_empty(lengths[0], name)
    return lengths[0]


def _length(array: Any, name: str) -> int:
    if is_array(array) and len(array.shape) == 0:
        raise DataError(
            f"{name} holds a single number; expected arrays whose first axis is samples"
        )
    return len(array)


def _refuse_empty(length: int, name: str) -> None:
    if length < 1:
        raise DataError(f"{name} holds no samples; expected at least 1")


def _is_mapped(array: Any) -> bool:
    """Whether the array lies in a file: a memory map, or a view of one."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def _gather(array: Any, indices: np.ndarray) -> Any:
    if not isinstance(array, np.ndarray):
        return array[indices]
    # A view as plain ndarray: np.take on a memmap would return a memmap.
    plain = np.asarray(array)
    # np.take copies the whole of a non-contiguous array, for every batch.
    taken = plain.take(indices, axis=0) if plain.flags.c_contiguous else plain[indices]
    # Files may come from a machine of the other byte order, which no framework accepts.
    return taken if taken.dtype.isnative else taken.astype(taken.dtype.newbyteorder("="))


def _unreadable(where: str, name: str, error: Exception) -> DataError:
    return DataError(f"{where} of {name} cannot be read: {describe_failure(error)}")
