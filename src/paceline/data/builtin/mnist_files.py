"""MNIST as files of samples with a list of them, as mpi_learn's get_mnist script writes it.

`features` are images (n, 28, 28, 1) as float32 from 0 to 1, `labels` are (n, 10) as float32, one
where the digit is. The training images are split into `files` files, the test images into fewer.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from paceline.core.chunks import split_evenly
from paceline.core.files import draft_of
from paceline.data.builtin import mnist
from paceline.errors import ConfigError, DataError

FORMATS = {"hdf5": ".h5", "npz": ".npz"}
PARTS = ("train", "test")
CLASSES = 10
TEST_SHARE = 6
"""Training files for each test file, as there are training images for each test image."""

Arrays = dict[str, np.ndarray]


def write_files(
    folder: Path,
    read_part: Callable[[str], tuple[np.ndarray, np.ndarray]],
    *,
    format: str = "hdf5",
    files: int = 24,
    force: bool = False,
) -> dict[str, list[Path]]:
    """Write training and test files and their lists; the files by part.

    `read_part` gives images and labels as bytes.
    """
    plan = {"train": files, "test": max(1, files // TEST_SHARE)}
    named = {part: name_files(folder, part, plan[part], format) for part in PARTS}
    _refuse_to_replace(folder, named, force)
    read = {part: read_part(part) for part in PARTS}
    for part, paths in named.items():
        _check_enough(part, len(paths), len(read[part][0]))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part, paths in named.items():
            _write_part(list_of(folder, part), paths, *read[part])
    except OSError as error:
        raise DataError(
            f"MNIST cannot be written to {folder}: {error.strerror or error}; choose a folder that "
            "you can write to, with room for it"
        ) from error
    return named


def name_files(folder: Path, part: str, count: int, format: str) -> list[Path]:
    """The names of a part's files, as mpi_learn has them."""
    if format not in FORMATS:
        raise ConfigError(f"format is {format!r}, expected one of: {', '.join(FORMATS)}")
    if count < 1:
        raise ConfigError(f"files is {count}, expected 1 or more")
    return [folder / f"mnist_{part}_{number}{FORMATS[format]}" for number in range(count)]


def list_of(folder: Path, part: str) -> Path:
    """The list of a part's files."""
    return folder / f"{part}_mnist.list"


def as_arrays(images: np.ndarray, labels: np.ndarray) -> Arrays:
    """Bytes as what a Keras model with a softmax is trained on.

    >>> arrays = as_arrays(np.full((1, 28, 28), 255, np.uint8), np.array([3]))
    >>> arrays["features"].shape, arrays["features"].max(), arrays["labels"][0, 2:5]
    ((1, 28, 28, 1), np.float32(1.0), array([0., 1., 0.], dtype=float32))
    """
    features = images[..., np.newaxis].astype(np.float32) / np.float32(255)
    return {"features": features, "labels": np.eye(CLASSES, dtype=np.float32)[labels]}


def read_mnist(data_dir: str | None) -> Callable[[str], tuple[np.ndarray, np.ndarray]]:
    """How to read the full set; it is downloaded first if it is not here."""
    directory = mnist.locate(data_dir)
    if directory is None and data_dir is not None:
        raise DataError(f"MNIST is not in {data_dir}; name the folder of its four files")
    found = directory or mnist.fetch()
    return lambda part: mnist.read_part(found, part)


def _refuse_to_replace(folder: Path, named: dict[str, list[Path]], force: bool) -> None:
    ours = [path for paths in named.values() for path in paths]
    there = [p for p in (*ours, *(list_of(folder, part) for part in PARTS)) if p.exists()]
    if there and not force:
        more = f" and {len(there) - 1} more exist" if len(there) > 1 else " exists"
        raise ConfigError(
            f"{there[0]}{more} already; choose another folder, or replace with --force"
        )


def _check_enough(part: str, files: int, samples: int) -> None:
    if files > samples:
        raise ConfigError(f"{files} {part} files of {samples} images; ask for fewer")


def _write_part(listed: Path, paths: list[Path], images: np.ndarray, labels: np.ndarray) -> None:
    """The list is removed first and written last: where there is one, all its files are whole."""
    listed.unlink(missing_ok=True)
    for path, part in zip(paths, split_evenly(len(images), len(paths)), strict=True):
        with draft_of(path) as draft:
            _SAVE[path.suffix](as_arrays(images[part], labels[part]), draft)
    with draft_of(listed) as draft:
        draft.write_text("".join(f"{path.name}\n" for path in paths))


def _save_hdf5(arrays: Arrays, path: Path) -> None:
    try:
        import h5py
    except ImportError as error:
        raise ConfigError(
            "HDF5 files need h5py, which is not installed; pip install 'paceline[hdf5]', or say "
            "--format npz"
        ) from error
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


def _save_npz(arrays: Arrays, path: Path) -> None:
    with path.open("wb") as file:  # of a name, numpy would make one that ends in .npz
        np.savez(file, **arrays)  # type: ignore[arg-type]


_SAVE = {".h5": _save_hdf5, ".npz": _save_npz}
