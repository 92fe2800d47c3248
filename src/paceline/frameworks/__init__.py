"""Models and optimizers of any framework as flat vectors: registry, seeds, threads."""

from paceline.frameworks.random_state import (
    accept_generator_states,
    generator_states,
    seed_generators,
)
from paceline.frameworks.registry import (
    ADAPTERS,
    FILES,
    is_model,
    load_file,
    loaded_frameworks,
    make_loop,
    make_replica,
)
from paceline.frameworks.replica import Replica
from paceline.frameworks.threads import limit_threads, prepare_backends, set_threads

__all__ = [
    "ADAPTERS",
    "FILES",
    "Replica",
    "accept_generator_states",
    "generator_states",
    "is_model",
    "limit_threads",
    "load_file",
    "loaded_frameworks",
    "make_loop",
    "make_replica",
    "prepare_backends",
    "seed_generators",
    "set_threads",
]
