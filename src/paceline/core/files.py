"""Writing files that a reader never sees half-written."""

import contextlib
import errno
import json
import math
import os
from pathlib import Path
from typing import Any

from paceline.errors import OutputError


def write_atomically(path: Path, text: str) -> None:
    """Write to a temporary name first; a reader sees the old file or the new one."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OutputError(
            f"{path} cannot be written: {error.strerror}. Choose a place that you can write to."
        ) from error


def render(document: Any) -> bytes:
    """Strict JSON."""
    return json.dumps(document, allow_nan=False).encode()


def sync_folder(path: Path) -> None:
    """Names, too, reach the disk late."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
            raise
    finally:
        os.close(descriptor)


def json_safe(value: Any) -> Any:
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
