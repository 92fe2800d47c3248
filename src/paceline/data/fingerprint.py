"""What ranks compare to be sure that they see the same data."""

import zlib

import numpy as np

from paceline.core.nests import leaves
from paceline.data.files.multi_file import MultiFileSource
from paceline.data.formats.image_folder import ImageFolder
from paceline.data.sources import ArraySource, DatasetSource, Source
from paceline.data.streams import Stream
from paceline.errors import PacelineError

SAMPLES = 16
SAMPLE_BYTES = 65_536
"""Read of each sample; those of films and scans are large."""


def describe_arrays(source: Source | Stream) -> str | None:
    """Kind and shape of the samples of each array; None where data are not arrays.

    >>> describe_arrays(ArraySource(np.zeros((5, 2)), np.arange(5)))
    'float64 (2,), int64 ()'
    """
    if isinstance(source, MultiFileSource):
        return ", ".join(f"{column.dtype} {column.shape}" for column in source.columns)
    if not isinstance(source, ArraySource):
        return None
    return ", ".join(_describe(array) for array in source.arrays())


def sum_samples(source: Source | Stream) -> int | None:
    """A checksum of some samples from the first to the last; None where data are not arrays.

    A dataset may make its samples anew at each reading, so they need not be the same twice.
    """
    if isinstance(source, DatasetSource) and isinstance(source.dataset, ImageFolder):
        return source.dataset.fingerprint()
    if isinstance(source, DatasetSource):
        tensors = getattr(source.dataset, "tensors", None)  # of a TensorDataset
        source = ArraySource(tensors) if isinstance(tensors, tuple) else source
    if not isinstance(source, ArraySource | MultiFileSource):
        return None
    last = len(source) - 1
    places = sorted({last * sample // (SAMPLES - 1) for sample in range(SAMPLES)})
    if isinstance(source, MultiFileSource):
        batch = source.take(np.array(places))
        arrays = [array for array in leaves((batch.inputs, batch.targets)) if array is not None]
        places = list(range(len(places)))
    else:
        source.check_files()
        arrays = source.arrays()
    try:
        found = 0
        for array in arrays:
            for place in places:
                found = zlib.crc32(_start_of(array[place]), found)
    except PacelineError:
        raise
    except Exception:  # an array of a kind that numpy cannot read; training will report it
        return None
    return found


def _describe(array: object) -> str:
    shape = tuple(getattr(array, "shape", ()))[1:]
    return f"{getattr(array, 'dtype', type(array).__name__)} {shape}"


def _start_of(sample: object) -> bytes:
    values = np.asarray(sample).reshape(-1)
    if values.dtype.kind in "OV" or values.dtype.char in "gG":
        raise TypeError(f"{values.dtype} has addresses or gaps, which differ from rank to rank")
    return values[: max(1, SAMPLE_BYTES // max(1, values.itemsize))].tobytes()
