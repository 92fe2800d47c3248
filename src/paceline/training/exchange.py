"""The meeting of a synchronous rule: one message per step carries gradients and all agreements."""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.comm import World
from paceline.errors import WorldError
from paceline.observe import Stopwatch
from paceline.rules import Rule
from paceline.vectors import aligned_zeros

_WEIGHT, _SAMPLES, _MORE, _STOP, _NUMBER, _FIELDS = range(6)


class Meeting(NamedTuple):
    """What all ranks know after an exchange."""

    samples: int
    """Samples behind this step, over all ranks."""
    more: bool
    """Some rank has a further batch in this epoch."""
    stop: bool
    """Some rank asks to stop."""


class GradientExchange:
    """Averages the gradients of all replicas by the rule.

    The message is the gradient vector with a short tail: weight, samples, whether there are more
    batches, whether to stop, the number of this exchange, and for each parameter whether it got a
    gradient. So a step costs one all-reduce, and every rank leaves it knowing the same. A barrier
    before it tells waiting for slower ranks from communication. Alone, nothing is copied and
    nothing is sent.
    """

    def __init__(self, world: World, replica: Any, rule: Rule, number: int = 0) -> None:
        """`number` tells exchanges of one program apart: the second model's, the third's."""
        self._world, self._replica, self._rule, self._number = world, replica, rule, number
        self.bytes_per_step = 0
        if world.size == 1:
            return
        layout = replica.layout
        self._message = aligned_zeros(layout.size + _FIELDS + len(layout.entries), layout.dtype)
        self._tail = self._message[layout.size : layout.size + _FIELDS]
        self._present = self._message[layout.size + _FIELDS :]
        self.bytes_per_step = self._message.nbytes
        replica.rehome(layout.empty_vector(), self._message[: layout.size])

    def meet(
        self, samples: float, nominal: int, more: bool, stop: bool, watch: Stopwatch
    ) -> Meeting:
        """Average the gradients that the replicas hold; `nominal` samples weigh 1."""
        if self._world.size == 1:
            return Meeting(int(samples), more, stop)
        gradient, present = self._replica.collect_gradients()
        weight = samples / nominal
        self._rule.contribute(gradient, weight)
        self._tail[:] = weight, samples, more, stop, self._number
        self._present[:] = present
        watch.lap("compute")
        self._world.barrier()
        watch.lap("wait")
        self._world.all_reduce(self._message)
        if self._tail[_NUMBER] != self._number * self._world.size:
            raise WorldError(
                "the ranks meet in different keep_pace blocks; let every rank take the same steps "
                "with each of its models"
            )
        total = Meeting(
            int(self._tail[_SAMPLES]), bool(self._tail[_MORE] > 0), bool(self._tail[_STOP] > 0)
        )
        self._rule.merge(gradient, float(self._tail[_WEIGHT]))
        watch.lap("communication")
        self._replica.accept_gradients(self._present)
        return total
