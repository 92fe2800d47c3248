"""Tars of samples as WebDataset writes them: KEY.jpg beside KEY.cls, one sample after the other."""

import io
import os
import tarfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paceline.data.images import SUFFIXES, Look, decode
from paceline.data.keys import Keys
from paceline.data.readers import Column
from paceline.errors import DataError

Place = tuple[int, int]
"""Where in the tar a file begins, and how many bytes it has."""


@dataclass(slots=True)
class _Sample:
    key: str
    image: Place | None = None
    label: Place | None = None
    others: list[str] = field(default_factory=list)


class TarFile:
    """Images and their classes in one uncompressed tar: any samples, by their places in it."""

    edges = None
    keys = Keys("image", "cls")

    def __init__(self, path: Path, keys: Keys | None = None) -> None:
        self._path = path
        self._samples = _index(path)
        self.samples = len(self._samples)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._first: np.ndarray | None = None
        self.columns: tuple[Column, ...] = ()
        if self.samples:
            self._first = self._image(0)
            image = Column("image", self._first.shape, self._first.dtype)
            self.columns = (image, Column("cls", (), np.dtype(np.int64)))

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """These images, and the numbers of their classes."""
        numbers = rows.tolist()
        images = np.stack([self._image(number) for number in numbers])
        return [images, np.array([self._label(number) for number in numbers], np.int64)]

    def close(self) -> None:
        """Nothing can be read after that."""
        self._close()

    def _image(self, number: int) -> np.ndarray:
        sample = self._samples[number]
        assert sample.image is not None, "looked for when the tar was indexed"
        name = self._path / sample.key
        return decode(name, Look(), self._first, io.BytesIO(self._content(sample.image)))

    def _label(self, number: int) -> int:
        sample = self._samples[number]
        assert sample.label is not None, "looked for when the tar was indexed"
        text = self._content(sample.label)
        try:
            return int(text)
        except ValueError:
            raise DataError(
                f"{sample.key}.cls in {self._path} holds {text[:20]!r}, expected the "
                "number of a class"
            ) from None

    def _content(self, place: Place) -> bytes:
        begin, size_bytes = place
        content = os.pread(self._descriptor, size_bytes, begin)
        if len(content) < size_bytes:
            raise DataError(f"{self._path} is truncated; write it again")
        return content


def _index(path: Path) -> list[_Sample]:
    """The samples by the headers of the tar; what they hold is passed over."""
    samples: dict[str, _Sample] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isfile():
                    _sort_in(member, samples)
    except tarfile.ReadError as error:
        raise DataError(
            f"{path} is no tar, or a compressed or damaged one ({error}); write it uncompressed"
        ) from error
    for sample in samples.values():
        if sample.image is None or sample.label is None:
            raise DataError(
                f"sample {sample.key} in {path} has only: {', '.join(sample.others)}; "
                "expected an image (.jpg, .png, ...) and its class (.cls)"
            )
    return list(samples.values())


def _sort_in(member: tarfile.TarInfo, samples: dict[str, _Sample]) -> None:
    folder, slash, name = member.name.rpartition("/")
    stem, _, suffix = name.partition(".")
    if not stem:  # hidden files, as some tars of a Mac have
        return
    sample = samples.setdefault(key := f"{folder}{slash}{stem}", _Sample(key))
    place = (member.offset_data, member.size)
    sample.others.append(f".{suffix}")
    if suffix == "cls":
        sample.label = place
    elif f".{suffix.lower()}" in SUFFIXES:
        sample.image = place
