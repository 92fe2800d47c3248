"""Names of files: found, matched by patterns, and read from lists with one per line."""

import glob
import logging
import stat
from pathlib import Path

from paceline.core.user_code import describe_failure
from paceline.errors import DataError

log = logging.getLogger(__name__)

SUFFIXES = (".list", ".txt")


def read_list(name: str) -> list[Path]:
    """The files that the list names, in its order; those of a pattern sorted.

    Names are relative to the list's own folder or, if there is none of that name, to the current
    directory.
    """
    path = find_file(name)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is not a list of files: {error}; expected one name per line"
        ) from error
    files = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        if line and not line.startswith("#"):
            files += _resolve(line, path.parent, f"{path}, line {number}: ")
    if not files:
        raise DataError(f"{path} names no file; write one per line")
    _tell_repeated(files, path)
    return files


def expand_pattern(pattern: str) -> list[Path]:
    """The files that a pattern like `data/*.h5` matches, sorted."""
    return _resolve(pattern, Path(), "")


def is_pattern(name: str) -> bool:
    """Whether it has wildcards, and is not itself the name of a file."""
    return glob.has_magic(name) and not exists(Path(name))


def exists(path: Path) -> bool:
    """Whether there is such a file or folder; False for names that no file can have."""
    try:
        return path.exists()
    except OSError:
        return False


def one_kind(paths: list[Path], name: str) -> str:
    """The suffix that all files have."""
    for path in paths:
        if path.suffix != paths[0].suffix:
            raise DataError(
                f"{name} names {paths[0]} and {path}; all files of a data set must be of one kind"
            )
    return paths[0].suffix


def _resolve(line: str, folder: Path, place: str) -> list[Path]:
    for base in (folder, Path()):
        path = base / line
        if line.endswith(".npy") and "," in line:
            path = Path(",".join(str(base / name.strip()) for name in line.split(",")))
        if all(exists(file) for file in files_of(path)):
            return [path]
        if is_pattern(str(path)):
            found = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207  absolute, too
            if found:
                return [Path(file) for file in found]
    what = "no file matches" if glob.has_magic(line) else "there is no file"
    places = dict.fromkeys(str(base.absolute()) for base in (folder, Path()))
    where = "" if Path(line).is_absolute() else f" in {' or '.join(places)}"
    raise DataError(f"{place}{what} {line}{where}; check the path")


def _tell_repeated(files: list[Path], path: Path) -> None:
    repeated = len(files) - len(set(files))
    if repeated:
        log.warning(
            "%s names %d file%s more than once: their samples are repeated",
            path,
            repeated,
            "s" * (repeated > 1),
        )


def find_file(name: str) -> Path:
    """The file of this name, which must exist and not be empty."""
    try:
        path = Path(name).expanduser()
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"there is no file {path}; check the path{_from_here(path)}") from None
    except (OSError, ValueError, RuntimeError) as error:  # too long, forbidden, no such ~user
        raise DataError(f"{name} cannot be opened: {describe_failure(error)}") from error
    if stat.S_ISDIR(found.st_mode):
        raise DataError(f"{path} is a directory; name the file in it")
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{path} is a pipe or device; expected a file, which can be read twice")
    if found.st_size == 0:
        raise DataError(f"{path} is empty; write it again")
    return path


def _from_here(path: Path) -> str:
    if path.is_absolute():
        return ""
    try:
        return f" (from {Path.cwd()})"
    except FileNotFoundError:
        return " (the current directory is gone)"


def files_of(path: Path) -> list[Path]:
    """A pair `x.npy,y.npy` is one path in a list, and two files.

    >>> [str(file) for file in files_of(Path("a/x.npy,b/y.npy"))]
    ['a/x.npy', 'b/y.npy']
    """
    if path.suffix != ".npy":
        return [path]
    return [Path(name.strip()) for name in str(path).split(",")]
