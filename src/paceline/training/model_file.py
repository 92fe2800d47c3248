"""The trained model gets to a disk: room for it is looked for before training, a place after it."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from paceline.errors import OutputError

MODEL, BEST = "model", "best"
_log = logging.getLogger("paceline.training")


def check_room(path: Path, nbytes: int) -> None:
    """Find out before training, where it can be known, that the model will have no place."""
    free = shutil.disk_usage(path).free
    if free < nbytes:
        raise OutputError(
            f"the model takes {nbytes / 1e6:,.1f} MB, and there are {free / 1e6:,.1f} MB free in "
            f"{path}: {(nbytes - free) / 1e6:,.1f} MB are missing. Make room there, or choose "
            "another run_dir"
        )


def save_model(save: Callable[[Path], Path], run_dir: Path) -> Path:
    """Put the model into the run directory, whole; where that fails, somewhere else, and say so.

    `save(path)` writes it under that name with a suffix, and returns the path.
    """
    try:
        return _save_into(run_dir, save)
    except Exception as error:  # libraries have their own for a full disk
        kept = next(_save_elsewhere(save), None)
        where = (
            f"It is in {kept} instead: move it from there"
            if kept is not None
            else "Nor could it be saved in the working, home or temporary directory"
        )
        raise OutputError(f"the model cannot be saved in {run_dir}: {error}. {where}") from error


def save_best(save: Callable[[Path], Path], run_dir: Path) -> None:
    """Put the model of the best epoch so far beside what will be the last."""
    try:
        _save_into(run_dir, save, BEST)
    except Exception as error:  # libraries have their own for a full disk
        _log.warning("the best model so far cannot be saved in %s: %s", run_dir, error)


def _save_into(folder: Path, save: Callable[[Path], Path], name: str = MODEL) -> Path:
    """A reader sees the old file or the new one, never half."""
    draft = Path(tempfile.mkdtemp(prefix=".model-", dir=folder))
    try:
        written = save(draft / name)
        return written.replace(folder / written.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _save_elsewhere(save: Callable[[Path], Path]) -> Iterator[Path]:
    for find in (Path.cwd, Path.home, lambda: Path(tempfile.gettempdir())):
        folder = None
        with suppress(Exception):
            folder = Path(tempfile.mkdtemp(prefix="paceline-model-", dir=find()))
            yield _save_into(folder, save)
            return
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
