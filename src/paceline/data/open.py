"""Open a data set by its name."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.core.user_code import describe_failure, load_function
from paceline.data.builtin import digits, mnist
from paceline.data.convert import as_source
from paceline.data.files.keys import Keys, read_keys
from paceline.data.files.multi_file import MultiFileSource
from paceline.data.files.paths import SUFFIXES as LIST_SUFFIXES
from paceline.data.files.paths import expand_pattern, find_file, is_pattern, one_kind, read_list
from paceline.data.files.reader import Contents, OpenFile
from paceline.data.formats.csv_file import CsvFile
from paceline.data.formats.hdf5 import Hdf5File
from paceline.data.formats.image_folder import ImageFolder, split_options
from paceline.data.formats.numpy_files import NpyFiles, NpzFile, map_npy, read_npz
from paceline.data.formats.tables import ParquetFile
from paceline.data.formats.webdataset import TarFile
from paceline.data.sources import ArraySource, DatasetSource, Source
from paceline.data.streams import Stream
from paceline.errors import DataError, PacelineError

KINDS = (
    "digits, mnist, FILE.h5, FILE.npz, X.npy, X.npy,Y.npy, FILE.parquet, FILE.csv, FILE.tar, a "
    "list of files (FILE.list or .txt), a pattern like 'DIR/*.h5', a folder of images "
    "(DIR/CLASS/IMAGE), file.py:function or package.module:function"
)
READERS: dict[str, OpenFile] = {
    ".h5": Hdf5File,
    ".hdf5": Hdf5File,
    ".npz": NpzFile,
    ".npy": NpyFiles,
    ".parquet": ParquetFile,
    ".csv": CsvFile,
    ".tar": TarFile,
}
"""What opens a file of this suffix, alone or among others."""
NAMELESS = (".npy", ".tar")
"""Their arrays have no names."""


def open_data(
    spec: str,
    *,
    part: str,
    data_dir: str | None = None,
    keys: object = None,
    shuffle_buffer: int | None = None,
    contents: Sequence[Contents] | None = None,
) -> Source | Stream:
    """Open a data set by its name: see KINDS.

    part is "train" or "validation"; digits, mnist and functions with a parameter `part` use it.
    data_dir is where mnist lies. keys are the names of inputs and targets in files (`read_keys`),
    shuffle_buffer how many samples of files that are read in blocks are shuffled at a time.
    contents is what another rank found in the files (`MultiFileSource.contents`), so that they need
    not all be opened here.
    """
    digits.part_suffix(part)
    names = read_keys(keys)
    if spec == "digits":
        return digits.load(part)
    if spec == "mnist":
        return mnist.load(part, data_dir)
    if spec.endswith(".npz") and not is_pattern(spec):
        return _open_npz(spec, names)
    if spec.endswith(".npy") and not is_pattern(spec):
        return _open_npy(spec)
    if _is_of_files(spec):
        return _open_files(spec, names, shuffle_buffer, contents)
    if ":" in spec:
        return _call(spec, part)
    folder, look = split_options(spec)
    if folder and _is_directory(folder):
        return DatasetSource(ImageFolder(Path(folder).expanduser(), look), name=spec)
    raise DataError(f"'{spec}' is not a data set; give one of: {KINDS}")


def reads_keys(spec: str) -> bool:
    """Whether names of inputs and targets mean something for it."""
    return _is_of_files(spec) and not spec.endswith(NAMELESS)


def _is_of_files(spec: str) -> bool:
    return spec.endswith((*READERS, *LIST_SUFFIXES))


def _is_directory(name: str) -> bool:
    try:
        return Path(name).expanduser().is_dir()
    except (OSError, RuntimeError):  # forbidden, too long for a name, no such ~user
        return False


def _open_files(
    spec: str, keys: Keys | None, buffer: int | None, contents: Sequence[Contents] | None
) -> MultiFileSource:
    if spec.endswith(LIST_SUFFIXES):
        paths = read_list(spec)
    elif is_pattern(spec):
        paths = expand_pattern(spec)
    else:
        paths = [find_file(spec)]
    suffix = one_kind(paths, spec)
    if suffix not in READERS:
        raise DataError(
            f"{spec} names {paths[0]}, which is of no known kind; expected: {', '.join(READERS)}"
        )
    if keys is not None and suffix in NAMELESS:
        raise DataError(
            f"data.keys names arrays, and {spec} lists {suffix} files, which have no names; omit it"
        )
    reader = READERS[suffix]
    return MultiFileSource(paths, reader, name=spec, keys=keys, buffer=buffer, contents=contents)


def _open_npz(name: str, keys: Keys | None) -> ArraySource:
    arrays, keys, file = read_npz(name, keys)
    return ArraySource(*keys.arrange(arrays), name=name, files=(file,))


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
    # An iterator can be consumed only once, so it is made anew for each epoch.
    return Stream(make, spec) if isinstance(data, Iterator) else as_source(data, spec)


def _parameters(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except ValueError:
        return {}
