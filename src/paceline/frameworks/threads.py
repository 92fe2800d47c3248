"""How many threads the loaded frameworks use."""

from __future__ import annotations

import sys

from paceline.frameworks.keras import backend as keras_backend


def prepare_backends(threads: int) -> None:
    """Set what frameworks read from the environment when they are imported, and choose a backend
    for Keras that is installed; call it before a model's code is imported."""
    keras_backend.prepare_backend(threads)


def limit_threads(threads: int) -> None:
    """Let loaded frameworks use at most this many threads; a lower limit stays."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > threads:
        torch.set_num_threads(threads)
    keras_backend.limit_backend_threads(threads)


def set_threads(threads: int) -> None:
    """Let loaded frameworks use exactly this many threads."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    keras_backend.limit_backend_threads(threads)
