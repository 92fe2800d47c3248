"""Tars of samples as WebDataset writes them: KEY.jpg beside KEY.cls, one sample after the other."""

import io
import os
import tarfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paceline.data.files.keys import Keys
from paceline.data.files.reader import Column
from paceline.data.formats.image_folder import SUFFIXES, Look, decode
from paceline.errors import DataError

Place = tuple[int, int]
"""Where in the tar a file begins, and how many bytes it has."""
Index = tuple[list[str], np.ndarray]
"""The key of each sample, and a row of numbers: the places of its image and of its class."""


@dataclass(slots=True)
class _Sample:
    key: str
    image: Place | None = None
    label: Place | None = None
    others: list[str] = field(default_factory=list)


class TarFile:
    """Images and their classes in one uncompressed tar: any samples, by their offsets in it."""

    edges = None
    keys = Keys("image", "cls")

    def __init__(self, path: Path, keys: Keys | None = None, index: Index | None = None) -> None:
        self._path = path
        self.index: Index = _index(path) if index is None else index
        self._keys, self._places = self.index
        self.samples = len(self._keys)
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
        """Nothing can be read afterwards."""
        self._close()

    def _image(self, number: int) -> np.ndarray:
        begin, size_bytes, _, _ = self._places[number].tolist()
        name = self._path / self._keys[number]
        return decode(name, Look(), self._first, io.BytesIO(self._content((begin, size_bytes))))

    def _label(self, number: int) -> int:
        _, _, begin, size_bytes = self._places[number].tolist()
        text = self._content((begin, size_bytes))
        try:
            return int(text)
        except ValueError:
            raise DataError(
                f"{self._keys[number]}.cls in {self._path} holds {text[:20]!r}, expected the "
                "number of a class"
            ) from None

    def _content(self, place: Place) -> bytes:
        begin, size_bytes = place
        content = os.pread(self._descriptor, size_bytes, begin)
        if len(content) < size_bytes:
            raise DataError(f"{self._path} is truncated; write it again")
        return content


def _index(path: Path) -> Index:
    """Find the samples by the headers of the tar, without reading their content."""
    samples: dict[str, _Sample] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isfile():
                    _sort_in(member, samples)
    except tarfile.ReadError as error:
        raise DataError(
            f"{path} is not a tar, or a compressed or damaged one ({error}); write it uncompressed"
        ) from error
    places = np.empty((len(samples), 4), np.int64)
    for row, sample in zip(places, samples.values(), strict=True):
        if sample.image is None or sample.label is None:
            raise DataError(
                f"sample {sample.key} in {path} has only: {', '.join(sample.others)}; "
                "expected an image (.jpg, .png, ...) and its class (.cls)"
            )
        row[:] = *sample.image, *sample.label
    return list(samples), places


def _sort_in(member: tarfile.TarInfo, samples: dict[str, _Sample]) -> None:
    folder, slash, name = member.name.rpartition("/")
    stem, _, suffix = name.partition(".")
    if not stem:  # hidden files, as in tars made on a Mac
        return
    sample = samples.setdefault(key := f"{folder}{slash}{stem}", _Sample(key))
    place = (member.offset_data, member.size)
    sample.others.append(f".{suffix}")
    if suffix == "cls":
        sample.label = place
    elif f".{suffix.lower()}" in SUFFIXES:
        sample.image = place
