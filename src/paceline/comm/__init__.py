"""Ranks that talk to each other: the World and its implementations."""

from paceline.comm.solo import SoloWorld
from paceline.comm.threads import ThreadWorld, current_world, run_world
from paceline.comm.world import ANY_RANK, Buffer, Received, World

__all__ = [
    "ANY_RANK",
    "Buffer",
    "Received",
    "SoloWorld",
    "ThreadWorld",
    "World",
    "current_world",
    "run_world",
]
