"""Open the data set that a user names by text."""

import inspect
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from paceline.data import digits, mnist
from paceline.data.convert import as_source
from paceline.data.sources import ArraySource, Source
from paceline.data.streams import Stream
from paceline.errors import DataError, PacelineError
from paceline.functions import describe_failure, load_function

KINDS = "digits, mnist, FILE.npz, X.npy, X.npy,Y.npy, file.py:function or package.module:function"
DEFAULT_KEYS = ("x", "y")


def open_data(
    spec: str,
    *,
    part: str,
    data_dir: str | None = None,
    keys: tuple[str, str] | None = None,
) -> Source | Stream:
    """Open `digits`, `mnist`, a .npz or .npy file, or what a function returns.

    part is "train" or "validation"; digits, mnist and functions with a parameter `part` heed it.
    data_dir is where mnist lies, keys are the names of inputs and targets in a .npz file.
    """
    digits.part_suffix(part)
    if spec == "digits":
        return digits.load(part)
    if spec == "mnist":
        return mnist.load(part, data_dir)
    if spec.endswith(".npz"):
        return _open_npz(Path(spec).expanduser(), keys or DEFAULT_KEYS)
    if spec.endswith(".npy"):
        return _open_npy(spec)
    if ":" in spec:
        return _call(spec, part)
    problem = "is a directory" if spec and Path(spec).is_dir() else "names no data"
    raise DataError(f"'{spec}' {problem}; give one of: {KINDS}")


def _open_npz(path: Path, keys: tuple[str, str]) -> ArraySource:
    _check_file(path)
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise DataError(f"{path} holds a single array, not an archive; rename it to .npy")
        with archive as arrays:
            missing = [key for key in keys if key not in arrays]
            if missing:
                raise DataError(
                    f"{path} has no array {' or '.join(missing)}; it has: "
                    f"{', '.join(arrays.files) or 'none'}. Set data.keys to the names of inputs "
                    "and targets"
                )
            inputs, targets = (arrays[key] for key in keys)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise _unreadable(path, "np.savez", error) from error
    return ArraySource(inputs, targets, name=str(path))


def _open_npy(spec: str) -> ArraySource:
    paths = [Path(name.strip()).expanduser() for name in spec.split(",")]
    if len(paths) > 2:
        raise DataError(f"{spec} names {len(paths)} files; give X.npy or X.npy,Y.npy")
    arrays = [_map_npy(path) for path in paths]
    return ArraySource(*arrays, name=spec)


def _map_npy(path: Path) -> np.ndarray:
    _check_file(path)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise _unreadable(path, "np.save", error) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError(f"{path} is an archive of arrays; rename it to .npz")
    return array


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path} is a directory; name the file in it")
    if not path.is_file():
        raise DataError(f"there is no file {path}; check the path (from {Path.cwd()})")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; write it again")


def _unreadable(path: Path, writer: str, error: Exception) -> DataError:
    if isinstance(error, PermissionError):
        return DataError(f"{path} may not be read by this user; change its permissions")
    with path.open("rb") as file:
        known = file.read(6).startswith((b"\x93NUMPY", b"PK\x03\x04"))
    if not known:
        return DataError(f"{path} is no {path.suffix} file; write it with {writer}")
    text = " ".join(str(error).split())
    if "allow_pickle" in text or "Python objects" in text:
        return DataError(
            f"{path} holds Python objects, which are not read as they could run code; "
            "save arrays of numbers, all samples of one shape"
        )
    return DataError(f"{path} is truncated or damaged ({text}); write it again with {writer}")


def _call(spec: str, part: str) -> Source | Stream:
    function = load_function(spec)
    wanted = _parameters(function)
    needed = [
        name
        for name, parameter in wanted.items()
        if name != "part"
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise DataError(
            f"{spec} needs {', '.join(needed)}, but is called with no argument other than part; "
            "give the others defaults"
        )

    def make() -> Any:
        try:
            return function(part=part) if "part" in wanted else function()
        except PacelineError:
            raise
        except Exception as error:
            code = getattr(function, "__code__", None)
            cause = describe_failure(error, getattr(code, "co_filename", None))
            raise DataError(f"{spec} failed: {cause}") from error

    data = make()
    # What can be run through only once is made anew for each epoch.
    return Stream(make, spec) if isinstance(data, Iterator) else as_source(data, spec)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except ValueError:
        return {}
