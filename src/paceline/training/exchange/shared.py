"""The exchange of gradients between ranks that share a node, and with it their parameters."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from paceline.comm import World
from paceline.errors import WorldError
from paceline.observe import Stopwatch
from paceline.rules import BSP
from paceline.training.exchange.frame import Frame
from paceline.training.exchange.gradients import GradientExchange
from paceline.training.exchange.message import Meeting, Part
from paceline.vectors import ALIGNMENT_BYTES, Vector

_WEIGHT, _SAMPLES, _MORE, _STOP, _NUMBER, _SQUARES, _FIELDS = range(7)


_log = logging.getLogger("paceline.training")


class SharedExchange:
    """Averages gradients and takes the step, on one copy of the parameters for all ranks.

    Every rank writes its gradients into memory that all see, with a short head. A barrier; then
    each takes its own slice of the vector, sums it over the ranks and lets the optimizer move it,
    chunk by chunk while it is in the cache, straight in the common parameters. Another barrier. So
    nothing is sent, the optimizer's work is divided, and a node keeps one copy of parameters and
    optimizer state.
    """

    free, works = False, True

    def __init__(self, world: World, replica: Any, rule: BSP, frame: Frame) -> None:
        self._world, self._replica, self._rule = world, replica, rule
        self._number, self._clip_norm = frame.number, frame.clip_norm
        layout = replica.layout
        line = ALIGNMENT_BYTES // layout.dtype.itemsize
        stride = -(-layout.size // line) * line
        flags = -(-len(layout.entries) // line) * line
        floats = stride + world.size * (stride + flags)
        heads = world.size * ALIGNMENT_BYTES
        self._memory = world.node_memory(heads + floats * layout.dtype.itemsize, locks=0)
        self._heads = self._memory.bytes[:heads].view(np.float64).reshape(world.size, -1)
        rest = self._memory.bytes[heads:].view(layout.dtype)
        self._gradients = rest[stride : stride * (1 + world.size)].reshape(world.size, stride)
        self._gradients = self._gradients[:, : layout.size]
        present = rest[stride * (1 + world.size) :].reshape(world.size, flags)
        self._present = present[:, : len(layout.entries)]
        parameters = rest[: layout.size]
        replica.rehome(parameters, self._gradients[world.rank])  # all write the same values
        world.barrier()
        self._slice = _slice_of(layout.size, world.rank, world.size, line)
        self._optimizer = replica.slice_optimizer(parameters, self._slice)
        self._total = np.empty(0, layout.dtype)
        self._steps = 0

    @property
    def bytes_sent(self) -> int:
        return 0

    def before_step(self, part: Part, watch: Stopwatch) -> Meeting | None:
        """Sum the gradients, and take the step."""
        _, present = self._replica.collect_gradients()
        rank, head = self._world.rank, self._heads[self._world.rank]
        self._present[rank] = present
        self._steps += 1
        head[:_SQUARES] = part.weight, part.samples, part.more, part.stop, self._mark()
        watch.lap("compute")
        self._world.barrier()
        watch.lap("wait")
        meeting = self._read_heads()
        if meeting.weight:
            self._step(meeting.weight)
        watch.lap("compute")
        self._world.barrier()
        watch.lap("communication")
        self._replica.clear_gradients()
        return meeting

    def after_step(self, part: Part, watch: Stopwatch) -> Meeting | None:
        """All is done before the step."""
        return None

    def end_epoch(self, watch: Stopwatch) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        """Let every rank's optimizer have the state of all slices again, and give the memory back.

        The replica keeps it until it is released.
        """
        self._replica.accept_state(self._gather_state())
        self._memory.close()
        del self._heads, self._gradients, self._present, self._optimizer

    def centre(self) -> Vector | None:
        """The replicas are one."""
        return None

    def _gather_state(self) -> dict[str, tuple[Vector, dict[int, Any]]]:
        """By name, a vector and, by parameter, a value; None stands for its part of the vector."""
        mine: dict[str, dict[int, Any]] = {}
        vectors: dict[str, Vector] = {}
        for entry, name, piece, value in self._optimizer.states():
            in_vector = value.ndim == 1
            if in_vector:
                vector = vectors.setdefault(name, self._replica.layout.empty_vector())
                vector[piece] = value.numpy()
            mine.setdefault(name, {})[entry] = None if in_vector else value
        everyone = self._world.share(mine)
        found = {}
        for name in sorted({name for part in everyone for name in part}):
            vector = vectors.setdefault(name, self._replica.layout.empty_vector())
            self._world.all_reduce(vector)
            values = {at: value for part in everyone for at, value in part.get(name, {}).items()}
            found[name] = (vector, values)
        return found

    def _mark(self) -> float:
        """Which exchange of the program this is, and which of its steps."""
        return self._number * 2.0**32 + self._steps

    def _read_heads(self) -> Meeting:
        weight, samples, more, stop, number = self._heads[:, :_SQUARES].sum(axis=0).tolist()
        if number != self._mark() * self._world.size:
            raise WorldError(
                "the ranks meet in different keep_pace blocks; let every rank take the same steps "
                "with each of its models"
            )
        return Meeting(int(samples), weight, more > 0, stop > 0, applied=True)

    def _step(self, weight: float) -> None:
        weights = self._heads[:, _WEIGHT].tolist()
        present = self._present.sum(axis=0).tolist()

        def fill(piece: slice, out: Vector) -> None:
            self._rule.contribute(self._gradients[0, piece], weights[0], out=out)
            for gradient, share in zip(self._gradients[1:, piece], weights[1:], strict=True):
                out += gradient if share == 1.0 else gradient * out.dtype.type(share)
            self._rule.merge(out, weight, out=out)

        if self._clip_norm is None:
            self._optimizer.step(present, fill)
        else:
            self._step_clipped(present, fill, self._clip_norm)

    def _step_clipped(self, present: list[float], fill: Any, max_norm: float) -> None:
        """With a largest norm, the whole sum must be known before anybody steps."""
        piece = self._slice
        if not self._total.size:
            self._total = np.empty(piece.stop - piece.start, self._gradients.dtype)
        fill(piece, self._total)
        self._heads[self._world.rank, _SQUARES] = float(np.dot(self._total, self._total))
        self._world.barrier()
        norm = float(np.sqrt(self._heads[:, _SQUARES].sum()))
        factor = min(1.0, max_norm / (norm + 1e-6))  # as torch has it
        if factor < 1.0:
            self._total *= self._total.dtype.type(factor)

        def copy(part: slice, out: Vector) -> None:
            out[:] = self._total[part.start - piece.start : part.stop - piece.start]

        self._optimizer.step(present, copy)


def _slice_of(size: int, rank: int, ranks: int, line: int) -> slice:
    """This rank's part of a vector, on cache lines of its own."""
    edges = [size * at // ranks // line * line for at in range(ranks)] + [size]
    return slice(edges[rank], edges[rank + 1])


def can_share(world: World, replica: Any, rule: Any) -> bool:
    """Whether all ranks are on one node, and the optimizer's step may be divided among them."""
    return (
        world.size > 1
        and len(world.node_ranks) == world.size
        and isinstance(rule, BSP)
        and rule.wire == "float32"
        and getattr(replica, "divides", bool)()
    )


def make_shared(
    world: World, replica: Any, rule: BSP, frame: Frame
) -> SharedExchange | GradientExchange:
    """The shared exchange, or the plain one where the node's memory is too small."""
    try:
        return SharedExchange(world, replica, rule, frame)
    except WorldError as error:  # the same on all ranks
        if world.rank == 0:
            _log.warning("parameters are not shared between ranks: %s", error)
        return GradientExchange(world, replica, rule, frame.number)
