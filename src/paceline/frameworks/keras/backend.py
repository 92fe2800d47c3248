"""Keras' backend and its random numbers, without importing more than is loaded."""

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
"""In the order of choice, where nobody has chosen one that is installed."""
_GLOBAL_SEEDS = "global_seed_generator"


def prepare_backend(threads: int | None = None) -> None:
    """Before Keras is imported: a backend that is installed, quiet, with so many threads.

    TensorFlow and JAX read the number of threads when they start. What the user has set stays.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # each rank would tell of the CPU
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
    """What Keras' own file says; it writes one by itself, so that may be nobody's wish."""
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
    """Keras asks of each thing that it reads or writes whether it is TensorFlow's, and imports that
    for the question, if it is installed: seconds and much memory. While it is not loaded, nothing
    can be."""
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
    """TensorFlow tells of the CPU when it is loaded, whatever its log level; failures raise."""
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
    """What Keras' own `set_random_seed` does beyond Python, numpy and torch. That would import
    TensorFlow, if it is installed, for whatever backend."""
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(seed)
    _global_state().set_global_attribute(_GLOBAL_SEEDS, None)  # made anew at its first use


def backend_state() -> dict[str, Any]:
    """Where the random numbers of `keras.random` without a seed are."""
    seeds = _global_state().get_global_attribute(_GLOBAL_SEEDS)
    if seeds is None:
        return {}
    return {"seeds": np.array(sys.modules["keras"].ops.convert_to_numpy(seeds.state))}


def accept_backend_state(state: dict[str, Any]) -> None:
    """Go on where `backend_state` was."""
    if "seeds" in state:
        from keras.src.random.seed_generator import global_seed_generator

        global_seed_generator().state.assign(np.array(state["seeds"]))


def limit_backend_threads(threads: int) -> None:
    """For TensorFlow, if it has not begun to compute; later it takes no limit."""
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
