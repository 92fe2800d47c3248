"""mpi_learn's Data: where batches come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.nests import leaves, map_leaves
from paceline.data.files.keys import read_keys
from paceline.data.files.multi_file import MultiFileSource
from paceline.data.files.reader import Contents
from paceline.data.formats.hdf5 import Hdf5File
from paceline.errors import ConfigError


class Data:
    """Subclass it and override `load_data`, or `generate_data`.

    `load_data(name)` returns (X, Y) of a file, each an array or a list of arrays. `generate_data`
    yields batches ([x1, ...], [y1, ...]) of the files in `self.file_names` and returns after one
    epoch. Either way Paceline gives the workers samples, not files: it loads one file at a time and
    makes its own batches of `batch_size`, shuffled, with every sample used.
    """

    def __init__(self, batch_size: int, cache: str | None = None) -> None:
        self.batch_size = batch_size
        self.caching_directory = cache or None
        self.file_names: list[str] = []

    def set_caching_directory(self, cache: str | None) -> None:
        """A directory on each node, into which files are copied once."""
        self.caching_directory = cache or None

    def set_file_names(self, file_names: Sequence[Any]) -> None:
        """The files that the other methods use."""
        self.file_names = list(file_names)

    def load_data(self, in_file: Any) -> tuple[Any, Any]:
        """Inputs and targets of all samples of a file."""
        raise NotImplementedError(
            f"{type(self).__name__} has neither load_data nor generate_data; write one of them"
        )

    def generate_data(self) -> Iterator[tuple[Any, Any]]:
        """Batches of all files, in their order; the last one may be smaller."""
        left: tuple[Any, Any] | None = None
        for name in self.file_names:
            inputs, targets = self.load_data(name)
            if left is not None:
                inputs = self.concat_data(left[0], inputs)
                targets = self.concat_data(left[1], targets)
            samples = self.get_num_samples(inputs)
            whole = samples - samples % self.batch_size
            for first in range(0, whole, self.batch_size):
                last = first + self.batch_size
                yield self.get_batch(inputs, first, last), self.get_batch(targets, first, last)
            rest = [self.get_batch(part, whole, samples) for part in (inputs, targets)]
            left = (rest[0], rest[1]) if whole < samples else None
        if left is not None:
            yield left

    def inf_generate_data(self) -> Iterator[tuple[Any, Any]]:
        """The same, repeated forever."""
        while True:
            yield from self.generate_data()

    def count_data(self) -> int:
        """The samples of all files."""
        return sum(self.get_num_samples(self.load_data(name)[0]) for name in self.file_names)

    def finalize(self) -> None:
        """Called when training is over."""

    def is_numpy_array(self, data: Any) -> bool:
        """Whether it is one array, not a list of them."""
        return isinstance(data, np.ndarray)

    def get_num_samples(self, data: Any) -> int:
        """The samples of an array, or of a list of arrays."""
        return len(next(leaves(data)))

    def get_batch(self, data: Any, start_pos: int, end_pos: int) -> Any:
        """Some samples of an array, or of each array of a list."""
        return map_leaves(lambda array: array[start_pos:end_pos], data)

    def concat_data(self, data1: Any, data2: Any) -> Any:
        """The samples of one after those of the other."""
        if isinstance(data1, np.ndarray):
            return np.concatenate((data1, data2))
        return [self.concat_data(one, other) for one, other in zip(data1, data2, strict=True)]


class H5Data(Data):
    """HDF5 files with the datasets, or groups of datasets, `features` and `labels`.

    They are read in pieces, never whole, and ahead of training: `preloading` has no effect.
    """

    def __init__(
        self,
        batch_size: int,
        cache: str | None = None,
        preloading: int = 0,
        features_name: str = "features",
        labels_name: str = "labels",
    ) -> None:
        super().__init__(batch_size, cache)
        self.preloading = preloading
        self.features_name, self.labels_name = features_name, labels_name

    @property
    def keys(self) -> tuple[str, str]:
        """The names of inputs and targets."""
        return self.features_name, self.labels_name

    def open(
        self, names: Sequence[Any], contents: Sequence[Contents] | None = None
    ) -> MultiFileSource:
        """These files as one source of samples; contents is what another rank found in them."""
        paths, files = [Path(name) for name in names], f"{len(names)} HDF5 files"
        keys = read_keys(self.keys)
        return MultiFileSource(paths, Hdf5File, name=files, keys=keys, contents=contents)

    def load_data(self, in_file: Any) -> tuple[Any, Any]:
        source = self.open([in_file])
        batch = source.take(np.arange(len(source)))
        return batch.inputs, batch.targets

    def count_data(self) -> int:
        return len(self.open(self.file_names))


def data_class_getter(name: str) -> type[Data]:
    """The class of that name."""
    kinds = {"H5Data": H5Data}
    if name not in kinds:
        raise ConfigError(f"there is no data class {name!r}; known: {', '.join(kinds)}")
    return kinds[name]
