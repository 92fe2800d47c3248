"""Two rules of your own: a synchronous one that merges weights, an asynchronous one with a centre.

    paceline train mnist -n 2 --rule own_rules.py:SlowMo --set rule.beta=0.5
    paceline train mnist -n 3 --rule own_rules.py:DampedPush --set exchange.servers=1

or in Python `Trainer(..., rule=SlowMo(beta=0.5))`. docs/own-rule.md explains each method.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.rules import CentreRule, PushTerms, State, Vector, WeightRule


@dataclass(frozen=True, kw_only=True)
class SlowMo(WeightRule):
    """Slow momentum on the average of what workers did alone.

    v <- beta v + (c - mean(x)),  c <- c - alpha v,  x <- c.  Wang et al. 2020, arXiv:1910.00643.
    """

    every: int | str = 12
    alpha: float = 1.0
    beta: float = 0.6

    def init_state(self, replica: Vector) -> State:
        return {"centre": replica.copy(), "velocity": np.zeros_like(replica)}

    def contribute(self, replica: Vector, state: State, weight: float, out: Vector) -> None:
        np.multiply(state["centre"] - replica, weight, out=out)

    def merge(self, total: Vector, weight: float, replica: Vector, state: State) -> None:
        centre, velocity = state["centre"], state["velocity"]
        velocity *= self.beta
        velocity += total / weight
        centre -= self.alpha * velocity
        replica[:] = centre

    def centre(self, state: State) -> Vector:
        return state["centre"]


@dataclass(frozen=True, kw_only=True)
class DampedPush(CentreRule):
    """Push what was learned since the last pull, damped by its age.

    c <- c + (x - b) / (1 + staleness),  x, b <- c.  The weight is that of Jiang et al. 2017,
    doi:10.1145/3035918.3035933.
    """

    reply_kind: ClassVar[str] = "centre"

    every: int = 5

    def due(self, step: int) -> tuple[bool, bool]:
        return step % self.every == 0, step % self.every == 0

    def staleness_weight(self, staleness: int) -> float:
        return 1.0 / (1 + staleness)

    def init_worker(self, replica: Vector) -> State:
        return {"base": replica.copy()}

    def make_push(self, replica: Vector, state: State, terms: PushTerms, out: Vector) -> None:
        np.subtract(replica, state["base"], out=out)

    def absorb(self, push: Vector, centre: Vector, state: State, terms: PushTerms) -> None:
        push *= terms.scale
        centre += push

    def apply_reply(self, reply: Vector, before: Vector, replica: Vector, state: State) -> None:
        replica += reply - before  # steps taken while it travelled are kept
        state["base"][:] = reply
