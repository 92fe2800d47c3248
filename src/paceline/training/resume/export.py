"""The plain model of a run: what it saved at its end, or where a checkpoint has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paceline.checkpoint.saver import name_of
from paceline.checkpoint.store import Store, newest_valid
from paceline.comm import SoloWorld
from paceline.core.safetensors import Array
from paceline.core.trees import Tree
from paceline.core.vectors import Vector
from paceline.errors import CheckpointError, ConfigError
from paceline.frameworks.model_files import (
    READERS,
    PlainArray,
    PlainModel,
    check_suffix,
    copy_file,
    item_bytes,
    read_model,
)
from paceline.sync.saved import saved_common_weights
from paceline.training.resume.resumed import FOLDER, Resumed

NEWEST = "newest"
"""Instead of a checkpoint's name: the newest valid one."""


class Exported(NamedTuple):
    """What was written, and where it came from."""

    path: Path
    origin: str
    model: PlainModel

    def describe(self) -> str:
        """One line for the user."""
        arrays = len(self.model.arrays)
        if not arrays:
            return f"wrote {self.path}, a copy of {self.origin}"
        return (
            f"wrote {self.path} from {self.origin}: {self.model.values:,} values in {arrays} "
            f"array{'s' * (arrays != 1)}"
        )


def export_model(
    run_dir: Path,
    path: Path,
    checkpoint: str | None,
    force: bool,
    report: Callable[[str], None],
) -> Exported:
    """Write the model of a run to a file of its own, in the format that the suffix names.

    Without a checkpoint's name it is the model that the finished run saved; of one that has not
    finished, the newest checkpoint's. Damaged checkpoints that are passed over are reported.
    """
    _check_places(run_dir, path, force)
    saved = [run_dir / f"model{suffix}" for suffix in READERS]
    finished = next((file for file in saved if file.is_file()), None)
    if checkpoint is None and finished is not None:
        origin = f"the finished model of {run_dir}"
        if finished.suffix == path.suffix == ".keras":  # its classes may not be at hand
            copy_file(finished, path)
            return Exported(path, origin, PlainModel({}))
        model = read_model(finished)
    else:
        origin, model = _read_checkpoint(run_dir, checkpoint or NEWEST, report)
    model.write(path)
    return Exported(path, origin, model)


def _check_places(run_dir: Path, path: Path, force: bool) -> None:
    check_suffix(path)
    if not (run_dir / "config.yaml").is_file():
        problem = "has no config.yaml" if run_dir.is_dir() else "is no directory"
        raise ConfigError(
            f"{run_dir} is not a run directory: it {problem}. Give the one that the run named when "
            "it began (runs/... unless run_dir was set)"
        )
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; give the name of a file")
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already; choose another name, or add --force")


def _read_checkpoint(
    run_dir: Path, name: str, report: Callable[[str], None]
) -> tuple[str, PlainModel]:
    store = Store(run_dir / FOLDER)
    if name == NEWEST:
        found = newest_valid(store, report)
        if found is None:
            raise CheckpointError(
                f"{run_dir} holds no sound checkpoint to export, and {_about_finished(run_dir)}"
            )
        name = found
    elif name.isdecimal():
        name = name_of(int(name))
    resumed = Resumed(store, name, run_dir, SoloWorld())
    try:
        model = rebuild(resumed)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(
            f"the checkpoint {store.folder / name} is damaged: its parts do not fit together "
            f"({error}). Export another one."
        ) from error
    return f"step {resumed.facts['step']} of {run_dir}", model


def _about_finished(run_dir: Path) -> str:
    if any((run_dir / f"model{suffix}").is_file() for suffix in READERS):
        return "a finished model: leave --checkpoint out"
    return (
        "no finished model. Let the run end, or let it save on its way: "
        "--set checkpoint_every=epoch"
    )


def rebuild(resumed: Resumed) -> PlainModel:
    """The model after the steps of this checkpoint, as the run would validate it."""
    common = resumed.common
    if "layout" not in common:
        raise CheckpointError(
            "the checkpoint does not hold the names of the parameters: an older version wrote it. "
            "Resume the run, so that it saves another one, and export that"
        )
    vectors = {
        "parameters": _parameters(resumed),
        "buffers": _mean_buffers(resumed.everybody(lambda part: part["buffers"])),
        "constants": common["constants"],
    }
    rows, framework, architecture = _read_state(common)
    arrays: dict[str, PlainArray] = {}
    aliases: dict[str, str] = {}
    kept: dict[tuple[str, int], str] = {}
    for vector, name, shape, dtype, offset in rows:
        if vector not in vectors:
            raise CheckpointError(
                f"'{name}' is no parameter or buffer, and no checkpoint holds it; let the run end "
                "and export its model"
            )
        if 0 not in shape:  # what is empty lies where the next one does
            first = kept.setdefault((vector, offset), name)
            if first != name:
                aliases[name] = first
                continue
        arrays[name] = _cut_out(vectors[vector], shape, dtype, offset)
    return PlainModel(arrays, aliases, framework, architecture)


def _read_state(common: Tree) -> tuple[list[list], str, str | None]:
    """Where each array lies, which framework it is of, and the architecture, if that is known."""
    state = common.get("state")
    if state is None:
        return [["parameters", *row] for row in common["layout"]], "np", None
    if isinstance(state, dict):
        return state["rows"], state["framework"], state["architecture"]
    return state, "pt", None


def _parameters(resumed: Resumed) -> Vector:
    """Those of all ranks, the centre, or what replicas that differ agree on."""
    own, everybody = resumed.own, resumed.everybody
    parameters: Vector = resumed.common["parameters"]
    if "parameters" not in own:
        return parameters
    if resumed.centre is not None and resumed.centre.centre.size:
        return resumed.centre.centre
    common = saved_common_weights(own["exchange"])
    if common is not None:
        return common
    if not any(everybody(lambda part: part["exchange"]["weight"])):
        return parameters  # they have just exchanged, and are equal: a mean might round
    return resumed.parameters()


def _mean_buffers(buffers: Sequence[Vector]) -> Vector:
    """As at the end of an epoch: what is the same everywhere stays so to the last bit."""
    first = buffers[0]
    total = np.zeros_like(first)
    for other in buffers[1:]:
        apart = np.zeros_like(first)
        np.subtract(other, first, out=apart, where=other != first)  # equal infinities are no NaN
        total += apart
    total *= 1.0 / len(buffers)
    total += first
    return total


def _cut_out(vector: Vector, shape: Sequence[int], dtype: str, offset: int) -> PlainArray:
    """One array of a vector, in its own type and in the usual order of elements."""
    kind, _, strides = dtype.partition(" with strides ")
    size = math.prod(shape)
    if vector.dtype == np.uint8:  # constants lie there as bytes
        end = offset + size * item_bytes(kind)
        return PlainArray(kind, tuple(shape), vector[offset:end])
    piece = _in_usual_order(vector[offset : offset + size], shape, strides)
    if kind == "bfloat16":
        return PlainArray(kind, tuple(shape), _to_bfloat16(piece).reshape(-1).view(np.uint8))
    return PlainArray.of(piece.astype(kind))


def _in_usual_order(piece: Vector, shape: Sequence[int], strides: str) -> Array:
    """The array whose elements lie one after the other with these strides, which fill it.

    >>> _in_usual_order(np.arange(6), (2, 3), "(1, 2)")
    array([[0, 2, 4],
           [1, 3, 5]])
    """
    if not strides:
        return piece.reshape(shape)
    steps = [int(step) for step in strides.strip("()").split(",") if step.strip()]
    order = sorted(range(len(shape)), key=lambda axis: -steps[axis])
    laid = piece.reshape([shape[axis] for axis in order])
    return np.ascontiguousarray(laid.transpose(np.argsort(order)))


def _to_bfloat16(array: Array) -> Array:
    """The nearest numbers of that type, as torch takes them: ties go to the even one."""
    floats = np.ascontiguousarray(array, np.float32)
    bits = floats.view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(floats), 0x7FC0, nearest).astype(np.uint16)
