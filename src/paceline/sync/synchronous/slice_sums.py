"""Sums of the gradient, slice by slice, through the rule.

Each rank owns slices of the vector and sums them over the ranks of its node, chunk by chunk while
they are in the cache; between nodes with the owners of the same slices there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from paceline.comm import World, wait_until
from paceline.comm.allreduce.coded import CompressedAllreduce
from paceline.comm.nodes import Nodes
from paceline.comm.wire import make_codec
from paceline.core.chunks import Span, length
from paceline.core.vectors import Layout, Vector, is_finite
from paceline.observe import Stopwatch
from paceline.rules import GradientRule, State
from paceline.sync.interface import StepHead
from paceline.sync.settings import ExchangeContext
from paceline.sync.synchronous.overlap_sender import Bucket, OverlapSender, cut_buckets
from paceline.sync.synchronous.shared_buffers import REJECTED, SharedBuffers

SENDER_POLL_S = 200e-6
"""Longest sleep of a thread that waits beside the one that computes."""


class SliceSums(ABC):
    """The sums of this rank's pieces of the vector."""

    bytes_sent = 0
    pieces_of: Callable[[int], list[Span]]
    """Those of a rank of this node."""

    def __init__(self, buffers: SharedBuffers, rule: GradientRule, pieces: list[Span]) -> None:
        self._buffers, self._rule, self.pieces = buffers, rule, pieces
        ends = np.cumsum([*map(length, pieces)]).tolist()
        self._starts = {
            piece.start: end - length(piece)
            for piece, end in zip(pieces, ends, strict=True)
            if length(piece)
        }
        self.summed: Vector = np.empty(0, buffers.parameters.dtype)
        """The sums of all pieces, where they must be known before the step."""

    def keep_sums(self) -> None:
        """Make room for the sums of all pieces."""
        self.summed = np.zeros(sum(map(length, self.pieces)), self._buffers.parameters.dtype)

    def part(self, piece: Span) -> Vector:
        """Where the sum of a part of one of the pieces lies."""
        first = max(start for start in self._starts if start <= piece.start)
        start = self._starts[first] + piece.start - first
        return self.summed[start : start + length(piece)]

    def squares(self) -> float:
        """The square of the norm of all pieces' sums."""
        return float(np.dot(self.summed, self.summed))

    @abstractmethod
    def write(self, piece: Span, weight: float, out: Vector, watch: Stopwatch) -> None:
        """Write the merged gradient of a part of one of the pieces; `weight` is of all ranks."""

    @abstractmethod
    def write_for(self, piece: Span, weight: float, out: Vector, merged: bool) -> None:
        """The same for a rank that is lost, after all gradients were there; `merged`: it knew its
        sums before the step."""

    def wait_for_all(self) -> None:
        """Until the sums of all pieces are known."""
        return

    @property
    def residuals(self) -> State:
        """What rounding carries over: live arrays."""
        return {}

    def last_backward(self) -> None:
        """The gradients that come now are the last ones before the step."""
        return

    def gradient_ready(self, entry: int) -> None:
        """A gradient is in its place."""
        return

    def begin(self) -> None:
        """All gradients of this rank are there."""
        return

    def finish(self) -> None:
        """Everything of this step has been summed."""
        return

    def close(self) -> None:
        """End what runs beside."""
        return

    def abandon(self) -> None:
        """The same, where ranks were lost."""
        return

    def _weights(self) -> list[float]:
        """Of the gradients of the node's ranks."""
        weights: list[float] = self._buffers.heads[:, StepHead.WEIGHT].tolist()
        return weights

    def _accumulate(self, piece: Span, weights: list[float], out: Vector) -> None:
        """Sum a piece over the ranks of the node; ranks whose gradients are not finite are marked,
        and theirs left out."""
        rows = [row[piece] for row in self._buffers.gradients]
        if len(rows) == 1:  # a rank alone on its node may sum in place
            own = out if self._buffers.sums is None else rows[0]
            self._rule.contribute(own, weights[0], out=out)
        else:
            self._rule.accumulate(rows, weights, out=out)
        if is_finite(out):
            return
        for rank, row in enumerate(rows):
            if not is_finite(row):
                self._buffers.heads[rank, REJECTED] = 1
                row[:] = 0
        if len(rows) > 1:
            self._rule.accumulate(rows, weights, out=out)
        else:
            out[:] = 0


class NodeSums(SliceSums):
    """All ranks are on one node: a chunk is summed when the optimizer wants it."""

    _of_step: list[float] | None = None

    def write(self, piece: Span, weight: float, out: Vector, watch: Stopwatch) -> None:
        if self._of_step is None:
            self._of_step = self._weights()
        self._accumulate(piece, self._of_step, out)
        self._rule.merge(out, weight, out=out)

    def write_for(self, piece: Span, weight: float, out: Vector, merged: bool) -> None:
        self._accumulate(piece, self._weights(), out)
        self._rule.merge(out, weight, out=out)

    def finish(self) -> None:
        self._of_step = None


class CrossNodeSums(SliceSums):
    """Several nodes: buckets of the vector travel while backward still makes the later ones."""

    def __init__(
        self,
        world: World,
        nodes: Nodes,
        buffers: SharedBuffers,
        rule: GradientRule,
        buckets: Sequence[Bucket],
        pieces: list[Span],
        context: ExchangeContext,
    ) -> None:
        super().__init__(buffers, rule, pieces)
        self._world, self._rank = world, nodes.local.rank
        if nodes.local.size == 1 or buffers.sums is not None:
            self.summed = buffers.gradients[0] if buffers.sums is None else buffers.sums
            self._starts = {start: start for start in self._starts}
        else:
            self.keep_sums()
        # A communicator of its own: another exchange's sender may be busy at the same time.
        self._cross = nodes.cross.split(0) if nodes.cross is not None else None
        self._coded: list[CompressedAllreduce] | None = None
        dtype = buffers.parameters.dtype
        codec = make_codec(context.settings.wire, dtype)
        if self._cross is not None and codec is not None:
            sizes = map(length, pieces)
            self._coded = [CompressedAllreduce(self._cross, codec, size, dtype) for size in sizes]
        self._buckets, self._rounds = len(buckets), 0
        self._sender = OverlapSender(buckets, self._sum_bucket, world.thread_multiple)

    def write(self, piece: Span, weight: float, out: Vector, watch: Stopwatch) -> None:
        """Wait for the bucket that this part of the vector is in."""
        number = next(n for n, own in enumerate(self.pieces) if own.start <= piece.start < own.stop)
        watch.lap("compute")
        self._sender.wait_for(number)
        watch.lap("communication")
        self._rule.merge(self.part(piece), weight, out=out)

    def write_for(self, piece: Span, weight: float, out: Vector, merged: bool) -> None:
        if merged:
            out[:] = self.summed[piece]
        else:
            self._rule.merge(self.summed[piece], weight, out=out)

    def squares(self) -> float:
        if self._buffers.sums is None:
            return super().squares()
        # The sums of the node's other ranks lie there, too.
        parts = map(self.part, filter(length, self.pieces))
        return sum(float(np.dot(part, part)) for part in parts)

    def wait_for_all(self) -> None:
        self._sender.wait_for(self._buckets - 1)

    @property
    def residuals(self) -> State:
        return {
            f"{number}-{name}": vector
            for number, each in enumerate(self._coded or ())
            for name, vector in each.residuals.items()
        }

    def last_backward(self) -> None:
        self._sender.last_backward()

    def gradient_ready(self, entry: int) -> None:
        self._sender.gradient_ready(entry)

    def begin(self) -> None:
        self._sender.hand_in_rest()

    def finish(self) -> None:
        self._sender.finish()
        self._rounds += 1

    def close(self) -> None:
        self._sender.close()
        if self._cross is not None:
            self._cross.free()

    def abandon(self) -> None:
        self._sender.close()

    def _sum_bucket(self, number: int) -> None:
        """Sum a bucket over all ranks: this rank's piece of it."""
        bucket = number + 1 + self._rounds * self._buckets
        self._buffers.ready[self._rank, 0] = bucket
        wait_until(self._is_ready(bucket), SENDER_POLL_S)
        cross, piece = self._cross, self.pieces[number]
        if cross is None or not length(piece):
            return
        total = self.part(piece)
        self._accumulate(piece, self._weights(), total)
        if self._coded is None:
            cross.all_reduce(total)
            self.bytes_sent += 2 * (cross.size - 1) * total.nbytes // cross.size
        else:
            self.bytes_sent += self._coded[number].all_reduce(total)

    def _is_ready(self, bucket: int) -> Callable[[], bool]:
        def ready() -> bool:
            self._world.raise_if_failed()
            return bool((self._buffers.ready[:, 0] >= bucket).all())

        return ready


def make_slice_sums(
    world: World,
    nodes: Nodes,
    layout: Layout,
    buffers: SharedBuffers,
    rule: GradientRule,
    context: ExchangeContext,
) -> SliceSums:
    """The sums that these nodes need."""
    whole = [Bucket(slice(0, layout.size), tuple(range(len(layout.entries))))]
    buckets = cut_buckets(layout) if nodes.count > 1 else whole

    def pieces_of(rank: int) -> list[Span]:
        return [_own(nodes, bucket.piece, layout.dtype.itemsize, rank) for bucket in buckets]

    sums: SliceSums
    pieces = pieces_of(nodes.local.rank)
    if nodes.count > 1:
        sums = CrossNodeSums(world, nodes, buffers, rule, buckets, pieces, context)
    else:
        sums = NodeSums(buffers, rule, pieces)
        if context.clip_norm is not None:
            sums.keep_sums()
    sums.pieces_of = pieces_of
    return sums


def _own(nodes: Nodes, piece: Span, itemsize: int, rank: int) -> Span:
    own = nodes.slice_of(length(piece), itemsize, rank)
    return slice(piece.start + own.start, piece.start + own.stop)
