"""The full MNIST: found in a directory or the user's cache, or fetched into it."""

import gzip
import hashlib
import io
import logging
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np

from paceline.core.files import draft_of
from paceline.data.builtin.digits import image_source, part_suffix
from paceline.data.sources import ArraySource
from paceline.errors import DataError

log = logging.getLogger(__name__)

# Of the unpacked content: copies of MNIST are gzipped in more than one way.
MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
STEMS = {"train": "train", "test": "t10k"}
URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
TIMEOUT_S = 30.0
IMAGES_MAGIC, LABELS_MAGIC = 0x803, 0x801
SIDE = 28
GZIP_MAGIC = b"\x1f\x8b"
MOST_BYTES = 50_000_000
"""Of one file, packed or not; the largest has 47,040,016. Larger files are not read to the end."""


def load(part: str, data_dir: str | Path | None = None) -> ArraySource:
    """The full set; part is "train" or "validation" (the test images). Never downloads.

    Looks in data_dir and nowhere else if given; else in PACELINE_DATA, then in the user's cache.
    """
    suffix = part_suffix(part)
    directory = locate(data_dir)
    if directory is None:
        raise DataError(f"MNIST is not in {_searched(data_dir)}. {_remedy(data_dir)}")
    images, labels = read_part(directory, suffix)
    return image_source(images, labels, f"mnist ({part})")


def locate(data_dir: str | Path | None = None) -> Path | None:
    """The directory in which all four files lie, packed or not, or None."""
    for directory in _candidates(data_dir):
        if all(_find(directory, stem) for stem in MD5):
            return directory
    return None


def fetch(target: Path | None = None, url: str | None = None) -> Path:
    """Download what is missing of the four files into target (the user's cache) and check it.

    The base URL is `url`, else PACELINE_MNIST_URL, else a public mirror. Returns the directory.
    """
    target = target or cache_directory()
    url = (url or os.environ.get("PACELINE_MNIST_URL") or URL).rstrip("/") + "/"
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot make {target} for MNIST: {error.strerror}; "
            "set XDG_CACHE_HOME to a directory you can write to"
        ) from error
    for stem in MD5:
        packed = target / f"{stem}.gz"
        if _find(target, stem) is None:
            log.info("downloading %s%s", url, packed.name)
            _download(url + packed.name, packed)
    return target


def cache_directory() -> Path:
    """Where a download goes: `paceline/mnist` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "paceline" / "mnist"


def read_part(directory: Path, suffix: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) and labels (n,) as bytes; suffix is "train" or "test"."""
    stem = STEMS[suffix]
    images = _read(directory, f"{stem}-images-idx3-ubyte", IMAGES_MAGIC, (SIDE, SIDE))
    labels = _read(directory, f"{stem}-labels-idx1-ubyte", LABELS_MAGIC, ())
    return images, labels


def _read(directory: Path, stem: str, magic: int, shape: tuple[int, ...]) -> np.ndarray:
    path = _find(directory, stem)
    if path is None:
        raise DataError(f"{directory} has neither {stem} nor {stem}.gz")
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    return _parse(_verify(content, stem, str(path)), magic, shape, str(path))


def _parse(content: bytes, magic: int, shape: tuple[int, ...], origin: str) -> np.ndarray:
    """The array of an idx file: big-endian header (magic, count, sides), then bytes."""
    layout = f">{2 + len(shape)}I"
    begin = struct.calcsize(layout)
    header = struct.unpack(layout, content[:begin].ljust(begin, b"\0"))
    count = (len(content) - begin) // math.prod(shape)
    expected = (magic, count, *shape)
    if header != expected or len(content) != begin + count * math.prod(shape):
        raise DataError(
            f"{origin} has header {header} and {len(content)} bytes, expected {expected} and "
            f"{begin} + {count} x {math.prod(shape)} bytes; get it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=begin).reshape(count, *shape)


def _verify(content: bytes, stem: str, origin: str) -> bytes:
    """Unpack it if it is packed, and return the content if it is MNIST's."""
    try:
        if content.startswith(GZIP_MAGIC):
            with gzip.open(io.BytesIO(content)) as unpacked:
                content = unpacked.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{origin} is damaged: {error}; get it again") from error
    if len(content) > MOST_BYTES:
        raise DataError(
            f"{origin} is damaged: it has more than {MOST_BYTES} bytes, and no file of MNIST has; "
            "get it again"
        )
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != MD5[stem]:
        raise DataError(
            f"{origin} is damaged: its content has MD5 {found}, expected {MD5[stem]}; get it again"
        )
    return content


def _download(url: str, target: Path) -> None:
    # urllib.request costs a tenth of a second to import, and few runs need it.
    from http.client import HTTPException
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=TIMEOUT_S) as answer:
            content = answer.read(MOST_BYTES + 1)
    except (OSError, HTTPException, ValueError) as error:
        cause = getattr(error, "reason", None) or error
        raise DataError(f"cannot download {url}: {cause}. {_remedy(None)}") from error
    _verify(content, target.stem, url)
    try:
        with draft_of(target) as draft:
            draft.write_bytes(content)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror}; make room for it") from error


def _candidates(data_dir: str | Path | None) -> list[Path]:
    if data_dir is not None:
        return _around(Path(data_dir).expanduser())
    named = os.environ.get("PACELINE_DATA")
    if not named:
        return [cache_directory()]
    if not Path(named).expanduser().is_dir():
        raise DataError(f"PACELINE_DATA is {named}, which is not a directory; correct or unset it")
    return [*_around(Path(named).expanduser()), cache_directory()]


def _around(directory: Path) -> list[Path]:
    return [directory, directory / "mnist", directory / "MNIST" / "raw"]


def _find(directory: Path, stem: str) -> Path | None:
    for path in (directory / stem, directory / f"{stem}.gz"):
        try:
            if path.is_file():
                return path
        except OSError as error:  # otherwise it would count as absent, and be downloaded
            raise DataError(
                f"cannot look for {path}: {error.strerror}; change its permissions, or name "
                "another directory"
            ) from error
    return None


def _searched(data_dir: str | Path | None) -> str:
    return " or ".join(str(directory) for directory in _candidates(data_dir))


def _remedy(data_dir: str | Path | None) -> str:
    files = ", ".join(f"{stem}.gz" for stem in MD5)
    if data_dir is not None:
        return f"Put {files} there, or name another directory"
    return (
        f"Put {files} into {cache_directory()}, or set PACELINE_DATA to the directory that has "
        "them or PACELINE_MNIST_URL to a mirror; the built-in data set 'digits' needs no download"
    )
