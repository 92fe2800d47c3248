"""Writing files that a reader never sees half-written."""

import errno
import json
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from paceline.errors import OutputError


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A hidden name beside `path` to write to.

    It becomes `path` at the end of the block, so that a reader sees the old file or the new one; if
    the block fails, it is removed.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        yield draft
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


@contextmanager
def synced_draft(path: Path) -> Iterator[BinaryIO]:
    """The same as an open file, whose content is on the disk before it becomes `path`."""
    with draft_of(path) as draft, draft.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, text: str) -> None:
    """Write a text so that a reader sees the old file or the new one."""
    path = Path(path)
    try:
        with draft_of(path) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError, room: str = "") -> OutputError:
    """The error for a file that you chose; `room` says what needs space there."""
    space = f", with room for {room}" if room else ""
    return OutputError(
        f"{path} cannot be written: {error.strerror or error}. Choose a place that you can write "
        f"to{space}."
    )


def render_json(document: object) -> bytes:
    """Strict JSON: no NaN, no infinity."""
    return json.dumps(document, allow_nan=False).encode()


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk, as fsync does with a file's content."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
            raise
    finally:
        os.close(descriptor)


def json_safe(value: object) -> object:
    """Return `value` with every NaN or infinite float in it, however deep, replaced by None.

    Numpy scalars and arrays become plain Python values on the way.

    >>> json_safe({"loss": float("nan"), "norms": (1.0, float("inf"))})
    {'loss': None, 'norms': [1.0, None]}
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(item) for item in value]
    return value
