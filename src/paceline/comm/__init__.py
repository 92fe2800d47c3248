"""Communication between ranks: the World and its implementations."""

from paceline.comm.polling import Backoff, wait_until
from paceline.comm.solo import SoloWorld
from paceline.comm.threads import ThreadWorld, current_world, run_world
from paceline.comm.world import ANY_RANK, Buffer, NodeMemory, Pending, World

__all__ = [
    "ANY_RANK",
    "Backoff",
    "Buffer",
    "NodeMemory",
    "Pending",
    "SoloWorld",
    "ThreadWorld",
    "World",
    "current_world",
    "run_world",
    "wait_until",
]
