"""Folders of images, one folder for each class."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import parse_qsl

import numpy as np

from paceline.core.regular_files import open_regular
from paceline.data.files.paths import exists
from paceline.data.files.reader import blamed_on, need
from paceline.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
GREY = ("1", "L", "I", "F", "I;16", "LA")


@dataclass(frozen=True)
class Look:
    """How images are brought to one form."""

    size: tuple[int, int] | None = None
    """Width and height to which all are resized; None: all must have one size."""
    mode: str | None = None
    """"RGB" or "L" (grey); None: as the first."""
    channels: str = "first"
    """Where the colour axis is: first, as in torch, or last, as in Keras."""


def split_options(spec: str) -> tuple[str, Look]:
    """`DIR?size=64x48&mode=RGB&channels=last` as the folder and the look.

    >>> split_options("photos?size=64x48")
    ('photos', Look(size=(64, 48), mode=None, channels='first'))
    """
    name, mark, options = spec.partition("?")
    if not mark or exists(Path(spec)):
        return spec, Look()
    found = dict(parse_qsl(options, keep_blank_values=True))
    width, _, height = found.pop("size", "0x0").partition("x")
    mode, channels = found.pop("mode", None), found.pop("channels", "first")
    known = mode in (None, "RGB", "L") and channels in ("first", "last")
    if found or not known or not (width.isdecimal() and height.isdecimal()):
        raise DataError(
            f"'{spec}' has options that are not understood; expected DIR?size=WIDTHxHEIGHT, "
            "mode=RGB or mode=L, channels=first or channels=last, joined by &"
        )
    size = (int(width), int(height))
    return name, Look(size if min(size) > 0 else None, mode, channels)


class ImageFolder:
    """`DIR/class/image.png`: a sample is the image as bytes and the number of its class.

    Classes are the folders in DIR, sorted by name.
    """

    def __init__(self, folder: Path, look: Look) -> None:
        with blamed_on(folder):
            found = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
            self.classes = sorted(name for name in found if not name.startswith("."))
            self._files = [
                (path, number)
                for number, name in enumerate(self.classes)
                for path in sorted(_walk(folder / name))
            ]
        if not self._files:
            raise DataError(
                f"'{folder}' is a directory without images; expected {folder}/CLASS/IMAGE.png "
                f"(or {', '.join(SUFFIXES[1:])}). Files of arrays are named by a pattern, "
                f"'{folder}/*.h5', or by a list of files"
            )
        self._look = look
        self._first = decode(self._files[0][0], look, None)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        path, label = self._files[number]
        return decode(path, self._look, self._first), label

    def fingerprint(self) -> int:
        """A checksum of names and classes, the same wherever the same images are seen."""
        text = "\n".join(f"{path.parent.name}/{path.name} {label}" for path, label in self._files)
        return zlib.crc32(text.encode(errors="surrogateescape"))


def decode(
    path: Path, look: Look, like: np.ndarray | None, content: BinaryIO | None = None
) -> np.ndarray:
    """An image as bytes; `like` has the shape that all must have.

    `content` is read in place of the file, if it is given.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise need("images", "pillow", error) from error
    mode = look.mode
    if mode is None and like is not None:
        axis = 0 if look.channels == "first" else -1
        mode = "L" if like.shape[axis] == 1 else "RGB"
    with blamed_on(path), content or open_regular(path) as file, Image.open(file) as image:
        if look.mode is None and mode == "L" and image.mode not in GREY:
            raise DataError(
                f"{path} is in colour and the first image is grey; add ?mode=RGB or ?mode=L to "
                "the folder's name"
            )
        pixels = _pixels(image, look, mode or ("L" if image.mode in GREY else "RGB"))
    if like is not None and pixels.shape != like.shape:
        raise DataError(
            f"{path} has the shape {pixels.shape}, the first image {like.shape}; all "
            "images must have one size: add ?size=WIDTHxHEIGHT to the folder's name to resize them"
        )
    return pixels


def _pixels(image: Image.Image, look: Look, mode: str) -> np.ndarray:
    image = image.convert(mode)
    if look.size is not None and image.size != look.size:
        image = image.resize(look.size)
    pixels = np.asarray(image, np.uint8)
    if pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    return pixels.transpose(2, 0, 1) if look.channels == "first" else pixels


def _walk(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        for name in names:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield Path(root) / name
