"""Data without random access: samples come one after the other, in a fixed order."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from paceline.core.user_code import describe_failure
from paceline.data.batch import Batch
from paceline.data.collate import Collate, collate_samples
from paceline.errors import DataError, PacelineError


class Stream:
    """Samples of an iterable that `make()` returns for every epoch; a pair is (inputs, target).

    Every rank reads the whole stream and keeps its own samples, so `make` must give the same
    samples in the same order on every rank. They are not shuffled.
    """

    cheap = False

    def __init__(
        self,
        make: Callable[[], Iterable[object]],
        name: str = "stream",
        *,
        collate: Collate | None = None,
    ) -> None:
        self.make = make
        self.name = name
        self._collate = collate

    def samples(self) -> Iterator[object]:
        """One pass over all samples."""
        number = 0
        try:
            made = self.make()
            for sample in made:
                yield sample
                number += 1
        except PacelineError:
            raise
        except Exception as error:
            raise DataError(
                f"sample {number} of {self.name} cannot be read: {describe_failure(error)}"
            ) from error

    def collate(self, samples: Sequence[object], indices: np.ndarray) -> Batch:
        """Collate samples into a batch; indices are their positions in the stream."""
        return collate_samples(samples, indices, collate=self._collate, name=self.name)


def stream_once(samples: Iterator[object], name: str) -> Stream:
    """A stream from an iterator, which can be consumed only once."""
    left = [samples]

    def make() -> Iterator[object]:
        if not left:
            raise DataError(
                f"{name} can be read only once, and it has been; pass the function that makes it, "
                "which is called in every epoch"
            )
        return left.pop()

    return Stream(make, name)
