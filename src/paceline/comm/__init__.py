"""Ranks that talk to each other: the World and its implementations."""

from paceline.comm.polling import Backoff, wait_for_any, wait_until
from paceline.comm.solo import SoloWorld
from paceline.comm.threads import ThreadWorld, current_world, run_world
from paceline.comm.world import ANY_RANK, Buffer, NodeMemory, Pending, Received, World

__all__ = [
    "ANY_RANK",
    "Backoff",
    "Buffer",
    "NodeMemory",
    "Pending",
    "Received",
    "SoloWorld",
    "ThreadWorld",
    "World",
    "current_world",
    "run_world",
    "wait_for_any",
    "wait_until",
]
