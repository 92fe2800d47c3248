"""A job's folder on hosts other than the launcher's, and word from there to the launcher.

The launcher makes a folder in its shared memory for what the job's ranks leave there: segments of
MPI, node memory, word for the launcher. On every other host the first rank makes one of the same
name, and starts a keeper (see undertaker.py) that removes it when the job has ended there.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from paceline.launch import undertaker
from paceline.launch.environment import JOB_FOLDER
from paceline.launch.undertaker import KEEPER

STARTED = "started"
"""In the job's folder: a rank has come to life."""

WORD = b"\x1epaceline "
"""Begins a line on stderr that is for the launcher: a name, and what the file of it shall hold."""


def settle_in() -> None:
    """Make this host's folder of the job, unless it is there; tell the launcher that we live."""
    folder = os.environ.get(JOB_FOLDER)
    if folder and Path(folder).parent.is_dir():
        _make_folder(folder)
        tell_launcher(STARTED, "")


def _make_folder(folder: str) -> None:
    try:
        Path(folder).mkdir(mode=0o700)
        (Path(folder) / KEEPER).touch()  # others on this host send word to the launcher from now on
    except OSError:  # it is there, or cannot be: ranks do without, and use the shared memory itself
        return
    script = Path(undertaker.__file__).resolve()
    argv = [sys.executable, "-I", "-S", str(script), folder, f"parent={os.getppid()}"]
    nowhere = subprocess.DEVNULL
    # Processes that know the folder are the job's, and the keeper ends them.
    environ = {name: value for name, value in os.environ.items() if name != JOB_FOLDER}
    with suppress(OSError):
        keeper = subprocess.Popen(
            argv,
            env=environ,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            cwd="/",
            start_new_session=True,
        )
        (Path(folder) / KEEPER).write_text(str(keeper.pid))


def tell_launcher(name: str, text: str | None) -> None:
    """Leave a file of that name for the launcher, or take it away again (`None`)."""
    folder = os.environ.get(JOB_FOLDER)
    if not folder or not Path(folder).is_dir():
        return
    file = Path(folder) / name
    with suppress(OSError):
        if text is None:
            file.unlink(missing_ok=True)
        else:
            written = file.with_name(f"{name}.new")
            written.write_text(text)
            written.replace(file)
    if (Path(folder) / KEEPER).exists() and os.environ.get("PACELINE_RAW") != "1":
        _send(name, text)


def take_word(line: bytes, folder: Path | None) -> None:
    """In the launcher: do here what a rank of another host has said it did there."""
    name, _, text = line.removeprefix(WORD).decode(errors="replace").strip().partition(" ")
    if folder is None or not name.replace(".", "").isalnum():
        return
    with suppress(OSError):
        if text:
            (folder / name).write_text(text[1:])
        else:
            (folder / name).unlink(missing_ok=True)


def _send(name: str, text: str | None) -> None:
    # One write of less than PIPE_BUF bytes arrives in one piece; a longer one could be mixed with
    # other ranks' lines, and is not worth it.
    said = "" if text is None else f" ={text}"
    line = WORD + f"{name}{said}\n".encode()
    if len(line) <= 4096 and line.count(b"\n") == 1:
        with suppress(OSError):
            os.write(2, line)
