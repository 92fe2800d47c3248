"""Writing files that a reader never sees half-written."""

import contextlib
import os
from pathlib import Path

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
