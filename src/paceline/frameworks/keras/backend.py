"""Keras' backend: choosing, seeding and limiting it, without importing anything new."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BACKENDS = ("torch", "jax", "tensorflow")
"""In order of preference, if no installed one was chosen."""
_GLOBAL_SEEDS = "global_seed_generator"


def prepare_backend(threads: int | None = None) -> None:
    """Choose an installed backend, quiet, with so many threads; call it before importing Keras.

    TensorFlow and JAX read the number of threads when they start. Your own settings stay.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else each rank describes the CPU
    if threads is not None:
        for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC"):
            os.environ.setdefault(name, str(threads))
    if "keras" in sys.modules or os.environ.get("KERAS_BACKEND"):
        return
    if not _is_installed(_configured()):
        found = next((name for name in BACKENDS if _is_installed(name)), None)
        if found is not None:
            os.environ["KERAS_BACKEND"] = found


def _configured() -> str:
    """What Keras' own file says; Keras writes it by itself, so nobody may have chosen that."""
    folder = os.environ.get("KERAS_HOME") or Path.home() / ".keras"
    try:
        content = json.loads((Path(folder) / "keras.json").read_text())
        return str(content.get("backend", "tensorflow"))
    except (OSError, ValueError, AttributeError):
        return "tensorflow"


def _is_installed(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


@contextlib.contextmanager
def without_tensorflow() -> Iterator[None]:
    """Keras checks whether each object that it reads or writes is TensorFlow's, and imports
    TensorFlow for the check, if it is installed: seconds and much memory. While TensorFlow is not
    loaded, no object can be its."""
    from keras.src.utils import module_utils

    lazy = module_utils.tensorflow
    if "tensorflow" in sys.modules or getattr(lazy, "_available", True) is not None:
        yield
        return
    lazy._available = False
    try:
        yield
    finally:
        lazy._available = None


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """TensorFlow describes the CPU when it is loaded, at any log level; failures raise."""
    sys.stderr.flush()
    with contextlib.ExitStack() as stack:
        kept = os.dup(2)
        stack.callback(os.close, kept)
        stack.callback(os.dup2, kept, 2)
        nothing = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, nothing)
        os.dup2(nothing, 2)
        yield


def seed_backend(seed: int) -> None:
    """Do what Keras' own `set_random_seed` does beyond Python, numpy and torch. That one would
    import TensorFlow, if it is installed, for any backend."""
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(seed)
    _global_state().set_global_attribute(_GLOBAL_SEEDS, None)  # made anew at its first use


def backend_state() -> dict[str, Any]:
    """The state of the generator that `keras.random` uses without a seed."""
    seeds = _global_state().get_global_attribute(_GLOBAL_SEEDS)
    if seeds is None:
        return {}
    return {"seeds": np.array(sys.modules["keras"].ops.convert_to_numpy(seeds.state))}


def accept_backend_state(state: dict[str, Any]) -> None:
    """Restore what `backend_state` returned."""
    if "seeds" in state:
        from keras.src.random.seed_generator import global_seed_generator

        global_seed_generator().state.assign(np.array(state["seeds"]))


def limit_backend_threads(threads: int) -> None:
    """Limit TensorFlow, unless it has begun to compute; then it accepts no limit."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return
    threading = tensorflow.config.threading
    try:
        threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        return


def _global_state() -> Any:
    from keras.src.backend.common import global_state

    return global_state
