"""The exchange of gradients between ranks that share their node's parameters."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.comm import World, wait_until
from paceline.comm.allreduce.coded import CompressedAllreduce
from paceline.comm.nodes import nodes_of
from paceline.comm.wire import make_codec
from paceline.core.vectors import Layout, Vector, copy_vectors, fill_vectors, is_finite
from paceline.errors import TrainingError, WorldError
from paceline.observe import Stopwatch
from paceline.rules import BSP
from paceline.rules.mean import add_up, weigh
from paceline.sync.settings import ExchangeContext
from paceline.sync.synchronous.gradients import GradientExchange
from paceline.sync.synchronous.message import Contribution, StepOutcome
from paceline.sync.synchronous.overlap_sender import Bucket, OverlapSender, cut_buckets
from paceline.sync.synchronous.shared_buffers import (
    FIELDS,
    NUMBER,
    REJECTED,
    SQUARES,
    WEIGHT,
    SharedBuffers,
    spread_spots,
)

_COURIER_PATIENCE_S = 200e-6

_log = logging.getLogger("paceline.training")


class SharedParametersExchange:
    """Averages gradients and takes the step, on one copy of the parameters for each node.

    Every rank writes its gradients into memory that its node sees, with a short head. A barrier;
    then each takes its own slices of the vector, sums them over the ranks of the node and with the
    same slices of the other nodes, and lets the optimizer move them, chunk by chunk while they are
    in the cache, straight in the common parameters. Another barrier. So nothing is sent inside a
    node, the optimizer's work is divided, and a node keeps one copy of parameters and optimizer
    state. Between nodes the vector goes in buckets, while backward still makes the later ones, and
    the optimizer steps on those that are back while others are on their way.
    """

    asynchronous, trains, replicas_stay_equal, filters_nonfinite = False, True, True, True
    steps_optimizer = True

    def __init__(self, world: World, replica: Any, rule: BSP, frame: ExchangeContext) -> None:
        self._world, self._replica, self._rule = world, replica, rule
        self._number, self._clip_norm = frame.number, frame.clip_norm
        self._nodes = nodes_of(world)
        self._local, self._rank = self._nodes.local, self._nodes.local.rank
        layout: Layout = replica.layout
        self._buffers = SharedBuffers(world, layout, self._local.size, replica.slot_names())
        replica.rehome(self._buffers.parameters, self._buffers.gradients[self._rank])
        self._local.barrier()  # all have written the same values
        far = self._nodes.count > 1
        whole = [Bucket(slice(0, layout.size), tuple(range(len(layout.entries))))]
        self._buckets = cut_buckets(layout) if far else whole
        self._pieces = [self._own(bucket.piece) for bucket in self._buckets]
        self._optimizer = replica.slice_optimizer(
            self._buffers.parameters, self._pieces, self._buffers.states
        )
        self._summed: Vector = np.empty(0, layout.dtype)
        """The sums of this rank's pieces, where they must be known before the step."""
        ends = np.cumsum([*map(_length, self._pieces)]).tolist()
        self._starts = {
            piece.start: end - _length(piece)
            for piece, end in zip(self._pieces, ends, strict=True)
            if _length(piece)
        }
        if far and self._local.size == 1:  # a rank alone on its node sums in place
            self._summed = self._buffers.gradients[0]
            self._starts = {start: start for start in self._starts}
        elif far or frame.clip_norm is not None:
            self._summed = np.zeros(sum(map(_length, self._pieces)), layout.dtype)
        self._sums: list[CompressedAllreduce] | None = None
        self._heads_across = self._nodes.cross_duplicate
        if self._heads_across is not None and world.thread_multiple:
            self._heads_across.poll_interval_s = (
                _COURIER_PATIENCE_S  # the courier is at work meanwhile
            )
        # A communicator of its own: another exchange's courier may be on its way at the same time.
        self._cross = self._nodes.cross.split(0) if self._nodes.cross is not None else None
        self._courier = self._make_courier(rule) if far else None
        self._weight_of: Callable[[], float] | None = None
        self._announced = False
        self._ends = [
            replica.on_gradient(self._arrived if self._courier else None),
            replica.expose_whole_state(self._optimizer),
        ]
        self._watched = spread_spots(layout)
        self._seen = self._look()
        self._steps = self._rounds = 0
        self.bytes_sent = 0

    def last_backward(self, weight: float) -> None:
        """Gradients of this weight come now, and then the step: they may travel at once."""
        if self._courier is not None:
            self._buffers.heads[self._rank, WEIGHT] = weight
            self._courier.last_backward()
            self._announced = True

    def announce_each(self, weight_of: Callable[[], float]) -> None:
        """Take every backward for the last before a step; ask for its weight when it begins."""
        self._weight_of = weight_of

    def _arrived(self, entry: int) -> None:
        assert self._courier is not None
        if self._weight_of is not None and not self._announced:
            self.last_backward(self._weight_of())
        self._courier.gradient_ready(entry)

    def before_step(self, part: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """Sum the gradients, and take the step."""
        if self._look() != self._seen:
            raise TrainingError(
                "something else than the optimizer changed the parameters, which the ranks of a "
                "node share, so every rank's change would add up. Let optimizer.step() make "
                "updates from gradients: only those are averaged. If all ranks make the same "
                "change (they clamp weights, for example), say keep_pace(..., share=False), or set "
                "share: false"
            )
        _, present = self._replica.collect_gradients()
        head = self._buffers.heads[self._rank]
        self._steps += 1
        wishes = part.more, part.stop, part.save, part.quit
        head[:SQUARES] = part.weight, part.samples, *wishes, self._mark()
        head[FIELDS:] = present
        watch.lap("compute")
        if self._courier is not None:
            self._courier.hand_in_rest()
        self._local.barrier()
        watch.lap("wait")
        totals = self._agree(watch)
        if self._courier is not None:
            self._courier.finish()
            self._announced = False
            self._rounds += 1
        self._local.barrier()
        watch.lap("communication")
        if totals is None:
            totals = self._buffers.head_sum.copy()
            self._step_on(totals, _nothing)
        self._seen = self._look()
        self._replica.clear_gradients()  # the user's own step, which follows, moves nothing
        weight, samples, more, stop, save, quit = totals[:NUMBER].tolist()
        rejected, head[REJECTED] = bool(head[REJECTED]), 0
        return StepOutcome(
            int(samples),
            weight,
            more > 0,
            stop > 0,
            save=save > 0,
            quit=quit > 0,
            rejected=rejected,
        )

    def after_step(self, part: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """All is done before the step."""
        return None

    def end_epoch(self, watch: Stopwatch) -> None:
        """Nothing is left to do."""

    def run_deferred(self, watch: Stopwatch) -> StepOutcome | None:
        """Nothing is put off."""
        return None

    def snapshot(self) -> dict[str, Any]:
        """What the sums carry over."""
        return copy_vectors(self._carried())

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what `snapshot` gave."""
        fill_vectors(self._carried(), saved)

    def restore_shared(self, saved: dict[str, Any]) -> None:
        """What the sums of the old ranks carried over does not fit these."""

    def _carried(self) -> dict[str, Vector]:
        return {
            f"{number}-{name}": vector
            for number, total in enumerate(self._sums or ())
            for name, vector in total.residuals.items()
        }

    def close(self) -> None:
        """Let every rank's optimizer have the state of all slices again, and give the memory back.

        The replica keeps it until it is released.
        """
        if self._courier is not None:
            self._courier.close()
        if self._cross is not None:
            self._cross.free()
        for end in self._ends:
            end()
        self._local.barrier()  # nobody's state is read any more
        del self._optimizer
        self._buffers.close()

    def abandon(self) -> None:
        """Leave the model and its optimizer alone; the other ranks are not asked."""
        for end in self._ends:
            end()

    def centre(self) -> Vector | None:
        """The replicas are one."""
        return None

    def _own(self, piece: slice) -> slice:
        own = self._nodes.slice_of(_length(piece), self._replica.layout.dtype.itemsize)
        return slice(piece.start + own.start, piece.start + own.stop)

    def _make_courier(self, rule: BSP) -> OverlapSender:
        cross = self._cross
        if cross is not None:
            codec = make_codec(rule.wire, self._replica.layout.dtype)
            if codec is not None:
                sizes, kind = map(_length, self._pieces), self._replica.layout.dtype
                self._sums = [CompressedAllreduce(cross, codec, size, kind) for size in sizes]
        return OverlapSender(self._buckets, self._take, self._world.thread_multiple)

    def _take(self, number: int) -> None:
        """Sum a bucket over all ranks: this rank's piece of it."""
        buffers, bucket = self._buffers, number + 1 + self._rounds * len(self._buckets)
        buffers.ready[self._rank, 0] = bucket
        wait_until(self._all_ready_for(bucket), _COURIER_PATIENCE_S)
        cross, piece = self._cross, self._pieces[number]
        if cross is None or not _length(piece):
            return
        total, weights = self._sum_of(piece), buffers.heads[:, WEIGHT].tolist()
        if len(weights) == 1:
            weigh(total, weights[0], out=total)
        else:
            add_up([row[piece] for row in buffers.gradients], weights, out=total)
        if not is_finite(total):
            self._add_up_sound(piece, weights, total)
        if self._sums is None:
            cross.all_reduce(total)
            self.bytes_sent += 2 * (cross.size - 1) * total.nbytes // cross.size
        else:
            self.bytes_sent += self._sums[number].all_reduce(total)

    def _add_up_sound(self, piece: slice, weights: list[float], out: Vector) -> None:
        """Add up what is finite, and mark the ranks whose gradients are not."""
        rows = [row[piece] for row in self._buffers.gradients]
        sound = [is_finite(row) for row in rows]
        for rank, whole in enumerate(sound):
            if not whole:
                self._buffers.heads[rank, REJECTED] = 1
                rows[rank][:] = 0
        if len(rows) > 1:  # a single row is the sum itself
            add_up(rows, weights, out=out)

    def _all_ready_for(self, bucket: int) -> Any:
        def ready() -> bool:
            self._world.raise_if_failed()
            return bool((self._buffers.ready[:, 0] >= bucket).all())

        return ready

    def _sum_of(self, piece: slice) -> Vector:
        start = self._starts[piece.start]
        return self._summed[start : start + _length(piece)]

    def _mark(self) -> float:
        """Which exchange of the program this is, and which of its steps."""
        return self._number * 2.0**32 + self._steps

    def _agree(self, watch: Stopwatch) -> Vector | None:
        """Sum the heads and take the step; None on a rank that owns nothing and hears later."""
        totals = np.add.reduce(self._buffers.heads) if self._nodes.owns_slice else None
        if totals is not None:
            if self._heads_across is not None:
                self._heads_across.all_reduce(totals)
                watch.lap("communication")
            if self._rank == 0:
                self._buffers.head_sum[:] = totals
            self._check_mark(totals)
        self._step(totals, watch)
        watch.lap("compute")
        return totals

    def _check_mark(self, totals: Vector) -> None:
        if totals[NUMBER] != self._mark() * self._world.size:
            raise WorldError(
                "the ranks meet in different keep_pace blocks; let every rank take the same steps "
                "with each of its models"
            )

    def _step(self, totals: Vector | None, watch: Stopwatch) -> None:
        weight = 0.0 if totals is None else float(totals[WEIGHT])
        weights = self._buffers.heads[:, WEIGHT].tolist()

        def from_the_node(piece: slice, out: Vector) -> None:
            add_up([row[piece] for row in self._buffers.gradients], weights, out=out)
            if not is_finite(out):
                self._add_up_sound(piece, weights, out)
            self._rule.merge(out, weight, out=out)

        def from_the_sums(piece: slice, out: Vector) -> None:
            self._wait_for(piece, watch)
            start = self._start_of(piece)
            self._rule.merge(self._summed[start : start + _length(piece)], weight, out=out)

        fill = from_the_node if self._courier is None else from_the_sums
        if self._clip_norm is not None:
            fill = self._clip(fill, self._clip_norm)
        if totals is not None:
            self._step_on(totals, fill)

    def _wait_for(self, piece: slice, watch: Stopwatch) -> None:
        """Let the bucket come home that this part of the vector is in."""
        assert self._courier is not None
        number = next(
            n for n, own in enumerate(self._pieces) if own.start <= piece.start < own.stop
        )
        watch.lap("compute")
        self._courier.wait_for(number)
        watch.lap("communication")

    def _step_on(self, totals: Vector, fill: Any) -> None:
        if totals[WEIGHT]:
            self._optimizer.step(totals[FIELDS:], fill)

    def _start_of(self, piece: slice) -> int:
        """Where the sums of a part of one of this rank's pieces begin."""
        start: int = max(start for start in self._starts if start <= piece.start)
        return int(self._starts[start] + piece.start - start)

    def _clip(self, fill: Any, max_norm: float) -> Any:
        """With a largest norm, the whole sum must be known before anybody steps."""
        for piece in self._pieces:
            if _length(piece):
                fill(piece, self._sum_of(piece))
        squares = np.array([np.dot(self._summed, self._summed) if self._nodes.owns_slice else 0.0])
        if self._heads_across is not None:  # elsewhere the same sum may have other last bits
            self._heads_across.broadcast(squares)
        self._buffers.heads[self._rank, SQUARES] = squares[0]
        self._local.barrier()
        norm = float(np.sqrt(self._buffers.heads[:, SQUARES].sum()))
        factor = min(1.0, max_norm / (norm + 1e-6))  # as torch has it

        def clipped(piece: slice, out: Vector) -> None:
            start = self._start_of(piece)
            np.multiply(
                self._summed[start : start + _length(piece)], out.dtype.type(factor), out=out
            )

        return clipped

    def _look(self) -> bytes:
        """The values of a few parameters here and there."""
        return self._buffers.parameters.take(self._watched, mode="clip").tobytes()


def _nothing(piece: slice, out: Vector) -> None:
    """The gradient of a rank that owns nothing."""


def _length(piece: slice) -> int:
    return int(piece.stop - piece.start)


def can_share(world: World, replica: Any, rule: Any) -> bool:
    """Whether the optimizer's step may be divided among the ranks of a node."""
    return (
        world.size > 1
        and isinstance(rule, BSP)
        and rule.wire != "powersgd"
        and getattr(replica, "step_is_elementwise", bool)()
    )


def make_shared(
    world: World, replica: Any, rule: BSP, frame: ExchangeContext
) -> SharedParametersExchange | GradientExchange:
    """The shared exchange, or the plain one where the node's memory is too small."""
    try:
        return SharedParametersExchange(world, replica, rule, frame)
    except WorldError as error:  # the same on all ranks
        if world.rank == 0:
            _log.warning("parameters are not shared between ranks: %s", error)
        return GradientExchange(world, replica, rule, frame.number)
