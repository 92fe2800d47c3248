"""A model as named arrays: read from and written to .safetensors, .npz, .pt and .keras files.

Arrays are kept as bytes with the name of their type, since models have types that numpy does not
have (bfloat16).
"""

from __future__ import annotations

import json
import math
import shutil
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from safetensors import safe_open

from paceline.core.files import cannot_write, sync_folder, synced_draft
from paceline.core.regular_files import check_regular
from paceline.core.safetensors import CHUNK_BYTES, DTYPES, Array, Tensor, safetensors_chunks
from paceline.errors import CheckpointError, ConfigError

CODES = {
    **DTYPES,
    "bfloat16": "BF16",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
"""Types by their names in numpy and torch, and what safetensors calls them."""
UNKNOWN_TO_NUMPY = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
"""Bytes of each element."""
KINDS = {code: kind for kind, code in CODES.items()}


class PlainArray(NamedTuple):
    """One array: the name of its type, its shape, and its bytes in C order, little-endian."""

    kind: str
    shape: tuple[int, ...]
    octets: Array

    @classmethod
    def of(cls, array: Array) -> PlainArray:
        """From a numpy array; shares its memory if it is contiguous."""
        plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return cls(array.dtype.name, array.shape, plain.reshape(-1).view(np.uint8))

    def to_numpy(self) -> Array:
        """A ValueError if numpy has no such type."""
        if self.kind in UNKNOWN_TO_NUMPY:
            raise ValueError(f"numpy has no {self.kind}")
        dtype = np.dtype(self.kind).newbyteorder("<")
        return self.octets.view(dtype).reshape(self.shape)


@dataclass(frozen=True)
class PlainModel:
    """Arrays by name; `aliases` are further names of some of them (tied weights)."""

    arrays: Mapping[str, PlainArray]
    aliases: Mapping[str, str] = field(default_factory=dict)
    framework: str = "np"
    """As safetensors files name it: pt, np; or keras."""
    architecture: str | None = None
    """In Keras' JSON, where it is known."""

    @property
    def values(self) -> int:
        """How many numbers there are; tied ones count once."""
        return sum(math.prod(array.shape) for array in self.arrays.values())

    def write(self, path: Path) -> None:
        """Write it in the format given by the suffix, whole or not at all."""
        _write_whole(path, lambda file: WRITERS[path.suffix](self, file))


def copy_file(source: Path, path: Path) -> None:
    """Copy a file, whole or not at all."""

    def copy(file: BinaryIO) -> None:
        with source.open("rb") as original:
            shutil.copyfileobj(original, file, CHUNK_BYTES)

    _write_whole(path, copy)


def _write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    try:
        with synced_draft(path) as file:
            write(file)
        sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error, room="the model") from error


def item_bytes(kind: str) -> int:
    """Of one element of this type; a ValueError if the type is unknown."""
    try:
        return UNKNOWN_TO_NUMPY.get(kind) or np.dtype(kind).itemsize
    except TypeError:
        raise ValueError(f"the type {kind} is unknown") from None


def check_suffix(path: Path) -> None:
    """Refuse a suffix that stands for no format in which a model can be written."""
    if path.suffix not in WRITERS:
        raise ConfigError(
            f"{path} has the suffix '{path.suffix}', expected one of {', '.join(WRITERS)}: it "
            "sets the format"
        )


def read_model(path: Path) -> PlainModel:
    """A model that a run has saved."""
    try:
        check_regular(path)
        return READERS[path.suffix](path)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror or error}. Export a checkpoint instead: "
            "--checkpoint"
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{path} is damaged: {error}. Export a checkpoint instead: --checkpoint"
        ) from error


def _read_safetensors(path: Path) -> PlainModel:
    """The arrays stay in the file until they are used."""
    try:
        with safe_open(path, framework="numpy") as file:  # compares header and length
            metadata = dict(file.metadata() or {})
    except OSError:
        raise
    except Exception as error:  # the parser raises many kinds, all for a damaged file
        raise ValueError(f"it is not a safetensors file: {error}") from error
    with path.open("rb") as raw:
        length = int.from_bytes(raw.read(8), "little")
        header = json.loads(raw.read(length))
    header.pop("__metadata__", None)
    begin = 8 + length
    empty = path.stat().st_size == begin  # an empty file cannot be mapped
    octets = np.empty(0, np.uint8) if empty else np.memmap(path, np.uint8, "r", offset=begin)
    arrays = {}
    for name, entry in header.items():
        if entry["dtype"] not in KINDS:
            raise ValueError(f"'{name}' has the unknown type {entry['dtype']}")
        first, last = entry["data_offsets"]
        arrays[name] = PlainArray(
            KINDS[entry["dtype"]], tuple(entry["shape"]), octets[first:last].view(np.ndarray)
        )
    framework = metadata.pop("format", "np")
    aliases = {name: of for name, of in metadata.items() if of in arrays and name not in arrays}
    return PlainModel(arrays, aliases, framework)


def _read_npz(path: Path) -> PlainModel:
    try:
        with np.load(path, allow_pickle=False) as file:
            return PlainModel({name: PlainArray.of(file[name]) for name in file.files})
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, AttributeError) as error:
        raise ValueError(f"it is not an .npz file: {error}") from error


def _read_keras(path: Path) -> PlainModel:
    from paceline.frameworks.keras.model_files import load_model

    try:
        model = load_model(path)
    except ConfigError as error:
        raise ConfigError(
            f"{error}. To export it: as .keras, or from a checkpoint (--checkpoint)"
        ) from error
    from paceline.frameworks.keras.saving import describe_architecture, named_arrays

    arrays = {name: PlainArray.of(values) for name, values in named_arrays(model).items()}
    return PlainModel(arrays, {}, "keras", describe_architecture(model))


def _write_keras(model: PlainModel, file: BinaryIO) -> None:
    if model.framework != "keras":
        raise ConfigError(
            ".keras holds a Keras model with its layers, and this run's model is not one of Keras; "
            "choose .safetensors, .pt or .npz"
        )
    if model.architecture is None:
        raise ConfigError(
            "the model does not describe its architecture (it has no get_config), which .keras "
            "needs; choose .safetensors or .npz"
        )
    from paceline.frameworks.keras.model_files import import_keras

    import_keras()  # quietly, with a backend that is installed
    from paceline.frameworks.keras.saving import write_model

    write_model(model.architecture, model.arrays, file)


def _write_safetensors(model: PlainModel, file: BinaryIO) -> None:
    form = "np" if model.framework == "keras" else model.framework
    # Like the format's own writer, the widest come first: then all are aligned.
    widest_first = sorted(model.arrays.items(), key=lambda item: -item_bytes(item[1].kind))
    for name, array in widest_first:
        if array.kind not in CODES:
            raise _refusal(name, array.kind, ".safetensors")
    tensors = {
        name: Tensor(CODES[array.kind], array.shape, array.octets) for name, array in widest_first
    }
    for chunk in safetensors_chunks(tensors, {"format": form, **model.aliases}):
        file.write(chunk)


def _write_npz(model: PlainModel, file: BinaryIO) -> None:
    """Tied arrays are written under each of their names: numpy's files cannot share them."""
    named = {name: name for name in model.arrays} | dict(model.aliases)
    with zipfile.ZipFile(file, "w") as archive:
        for name, of in named.items():
            try:
                array = model.arrays[of].to_numpy()
            except ValueError:
                raise _refusal(name, model.arrays[of].kind, ".npz") from None
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _write_pt(model: PlainModel, file: BinaryIO) -> None:
    try:
        from paceline.frameworks.torch.model_files import write_state_dict
    except ModuleNotFoundError as error:
        raise ConfigError(
            f".pt is a format of torch, which is not installed here ({error}); export .safetensors "
            "or .npz, or install it: pip install 'paceline[torch]'"
        ) from None
    try:
        write_state_dict(model.arrays, model.aliases, file)
    except TypeError as error:
        raise ConfigError(f"{error}; choose .npz") from None


def _refusal(name: str, kind: str, suffix: str) -> ConfigError:
    others = " or ".join(other for other in WRITERS if other not in (suffix, ".keras"))
    return ConfigError(f"'{name}' is {kind}, which {suffix} cannot hold; choose {others}")


READERS: dict[str, Callable[[Path], PlainModel]] = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    ".keras": _read_keras,
}
WRITERS: dict[str, Callable[[PlainModel, BinaryIO], None]] = {
    ".safetensors": _write_safetensors,
    ".pt": _write_pt,
    ".npz": _write_npz,
    ".keras": _write_keras,
}
"""By suffix."""
