"""Open the data set that a user names by text."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paceline.data import digits, mnist
from paceline.data.convert import as_source
from paceline.data.npy import map_npy, read_npz
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
        return _open_npz(spec, keys or DEFAULT_KEYS)
    if spec.endswith(".npy"):
        return _open_npy(spec)
    if ":" in spec:
        return _call(spec, part)
    problem = "is a directory" if spec and _is_directory(spec) else "names no data"
    raise DataError(f"'{spec}' {problem}; give one of: {KINDS}")


def _is_directory(name: str) -> bool:
    try:
        return Path(name).is_dir()
    except OSError:  # forbidden, or too long for a name
        return False


def _open_npz(name: str, keys: tuple[str, str]) -> ArraySource:
    (inputs, targets), file = read_npz(name, keys)
    return ArraySource(inputs, targets, name=name, files=(file,))


def _open_npy(spec: str) -> ArraySource:
    names = [name.strip() for name in spec.split(",")]
    if len(names) > 2:
        raise DataError(f"{spec} names {len(names)} files; give X.npy or X.npy,Y.npy")
    arrays, files = zip(*(map_npy(name) for name in names), strict=True)
    return ArraySource(*arrays, name=spec, files=files)


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
