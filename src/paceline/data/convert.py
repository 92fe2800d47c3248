"""Turn whatever you pass as data into a Source or a Stream."""

from collections.abc import Iterator, Mapping
from typing import Any

from paceline.core.nests import is_array, is_nest
from paceline.data.collate import Collate, torch_has
from paceline.data.sources import ArraySource, DatasetSource, Samples, Source
from paceline.data.streams import Stream, stream_once
from paceline.errors import DataError

KINDS = (
    "arrays or tensors, a pair (inputs, targets) of them, a torch Dataset, "
    "a list of samples, an iterable, or a function that returns one"
)


def as_source(data: Any, name: str | None = None) -> Source | Stream:
    """A Source where the data has random access, else a Stream.

    A function is called once per epoch. A generator lasts for one epoch.
    """
    if isinstance(data, (Stream, Source)):
        return data
    _refuse_lookalikes(data)
    name = name or _name(data)
    if torch_has(data, "utils", "data", "IterableDataset"):
        return Stream(lambda: data, name)
    if isinstance(data, tuple):
        return _from_tuple(data, name)
    if is_array(data) or isinstance(data, Mapping):
        return ArraySource(data, name=name)
    if isinstance(data, Iterator):
        return stream_once(data, name)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return DatasetSource(data, name=name)
    if hasattr(data, "__iter__"):
        return Stream(lambda: data, name)
    if torch_has(data, "utils", "data", "Dataset"):
        return DatasetSource(data, name=name)
    if callable(data):
        return Stream(data, name)
    raise DataError(f"a {type(data).__name__} is not data; pass {KINDS}")


def with_collate(source: Source | Stream, collate: Collate | None) -> Source | Stream:
    """The same samples, joined to batches by `collate` (None: as they were)."""
    if collate is None:
        return source
    if isinstance(source, DatasetSource) and source.collate is not None:
        raise DataError(
            f"{source.name} has a function that makes batches already; give collate once"
        )
    if isinstance(source, Stream):
        return Stream(source.samples, source.name, collate=collate)
    dataset = source.dataset if isinstance(source, DatasetSource) else Samples(source)
    return DatasetSource(dataset, collate=collate, name=source.name)


def _refuse_lookalikes(data: object) -> None:
    if torch_has(data, "utils", "data", "DataLoader"):
        raise DataError(
            "a DataLoader already makes batches; pass its dataset (loader.dataset) and a batch "
            "size, since Paceline shuffles, shards and batches itself"
        )
    if isinstance(data, (str, bytes)):
        raise DataError(f"a {type(data).__name__} is not data; open_data reads named data sets")
    if isinstance(data, (set, frozenset)):
        raise DataError("a set has no order that all ranks share; pass a list")


def _from_tuple(data: tuple[object, ...], name: str) -> ArraySource:
    if len(data) != 2 or not (is_array(data[0]) or is_nest(data[0])):
        kinds = ", ".join(type(item).__name__ for item in data)
        raise DataError(
            f"a tuple ({kinds}) is not data; pass (inputs, targets) as arrays or tensors, "
            "where inputs may be a tuple or dict of arrays, or a list of samples"
        )
    return ArraySource(data[0], data[1], name=name)


def _name(data: object) -> str:
    if isinstance(data, (tuple, Mapping)) or is_array(data):
        return "arrays"
    return getattr(data, "__name__", None) or type(data).__name__
