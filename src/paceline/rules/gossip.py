"""Gossip: replicas that push themselves to random peers now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.core.chunks import pieces
from paceline.core.vectors import Vector
from paceline.errors import ConfigError
from paceline.rules.base import GossipRule


@dataclass(frozen=True, kw_only=True)
class Gossip(GossipRule):
    """After a step, with some probability, send replica and half of one's weight to a random peer.

    Each of p workers begins with the weight a = 1 / p. A sender keeps half:  a <- a / 2. Who
    receives x_s with a_s takes the weighted mean:  x <- (a x + a_s x_s) / (a + a_s),
    a <- a + a_s. The weights, with those on their way, always add up to 1, and the weighted mean
    of all replicas is conserved. Nobody waits for anybody. GoSGD: Blot et al. 2016,
    arXiv:1611.09726.

    >>> rule, x = Gossip(probability=0.5), np.array([4.0])
    >>> rule.merge(x, 0.25, np.array([1.0]), rule.split_weight(0.25))
    0.375
    >>> x
    array([3.])
    """

    name: ClassVar[str] = "gossip"
    trivial_alone: ClassVar[bool] = True

    probability: float = 0.1

    def __post_init__(self) -> None:
        value = self.probability
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 < value <= 1):
            raise ConfigError(
                f"rule.probability is {value!r}, expected 0 < probability <= 1. The usual is 0.1"
            )

    def wants_to_push(self, rng: np.random.Generator) -> bool:
        """Whether this step ends with a push."""
        return bool(rng.random() < self.probability)

    def choose_peer(self, rng: np.random.Generator, rank: int, size: int) -> int:
        """One of the others, each as likely."""
        peer = int(rng.integers(size - 1))
        return peer + (peer >= rank)

    def split_weight(self, weight: float) -> float:
        """What a sender keeps of its weight, and what goes with its replica."""
        return weight / 2

    def merge(
        self, replica: Vector, weight: float, received: Vector, received_weight: float
    ) -> float:
        """Move the replica, in place, to the weighted mean with one received; its new weight."""
        share = received_weight / (weight + received_weight)
        for piece in pieces(replica.size):
            move = received[piece] - replica[piece]
            move *= share
            replica[piece] += move
        return weight + received_weight
