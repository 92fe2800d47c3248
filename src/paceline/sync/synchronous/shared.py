"""The exchange of gradients between ranks that share their node's parameters."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from paceline.comm import World
from paceline.comm.nodes import nodes_of
from paceline.core.chunks import length
from paceline.core.trees import Tree
from paceline.core.vectors import Layout, Vector, copy_vectors, fill_vectors
from paceline.errors import TrainingError, WorldError
from paceline.frameworks.replica import ShareableModel, VectorModel
from paceline.observe import Stopwatch
from paceline.rules import GradientRule, Rule
from paceline.sync.interface import Contribution, Exchange, Settled, StepHead, StepOutcome
from paceline.sync.settings import ExchangeContext, ExchangeSettings
from paceline.sync.synchronous.gradients import GradientExchange
from paceline.sync.synchronous.journal import StepJournal
from paceline.sync.synchronous.shared_buffers import (
    REJECTED,
    SQUARES,
    SharedBuffers,
    spread_spots,
)
from paceline.sync.synchronous.slice_sums import SENDER_POLL_S, make_slice_sums

_log = logging.getLogger("paceline.sync")


class SharedParametersExchange(Exchange):
    """Merges gradients and takes the step, on one copy of the parameters for each node.

    Every rank writes its gradients into memory that its node sees, with a short head. A barrier;
    then each rank sums its own slices of the vector (`slice_sums`) and lets the optimizer move
    them, chunk by chunk while they are in the cache, straight in the common parameters. Another
    barrier. So nothing is sent inside a node, the optimizer's work is divided, and a node keeps one
    copy of parameters and optimizer state.
    """

    replicas_stay_equal = filters_nonfinite = steps_optimizer = True

    def __init__(
        self, world: World, model: ShareableModel, rule: GradientRule, context: ExchangeContext
    ) -> None:
        self._world, self._model, self._context = world, model, context
        self._nodes = nodes_of(world)
        self._local, self._rank = self._nodes.local, self._nodes.local.rank
        self.workers = tuple(range(world.size))
        layout: Layout = model.layout
        several = self._nodes.count > 1
        slots = model.slot_names()
        # A rank alone on its node sums in the place of its gradients, unless these must be kept.
        keeps = self._local.size > 1 or context.keeps_gradients
        keeps_sums = several and world.elastic and keeps
        self._buffers = SharedBuffers(world, layout, self._local.size, slots, keeps_sums)
        model.rehome(self._buffers.parameters, self._buffers.gradients[self._rank])
        self._local.barrier()  # all have written the same values
        self._sums = make_slice_sums(world, self._nodes, layout, self._buffers, rule, context)
        self._optimizer = model.slice_optimizer(
            self._buffers.parameters, self._sums.pieces, self._buffers.slots
        )
        self._heads_cross = self._nodes.cross_duplicate
        if self._heads_cross is not None and world.thread_multiple:
            self._heads_cross.poll_interval_s = SENDER_POLL_S  # the sender is at work meanwhile
        self._weight_of: Callable[[], float] | None = None
        self._announced = False
        self._undo = [
            model.on_gradient(self._gradient_ready if several else None),
            model.expose_whole_state(self._optimizer),
        ]
        self._speed_at = self._buffers.speeds.start + world.rank
        self._watched = spread_spots(layout)
        self._seen = self._sample()
        self._mark = context.exchange_id * 2.0**32
        """Which exchange of the program this is, and which of its steps."""
        self._done = self._certain = self._mark
        """The last step that this rank has finished, and the last that all can finish: each node
        has all it takes."""
        self._begun: Vector | None = None
        """With which gradients the optimizer has begun the step."""
        self._journal: StepJournal | None = None
        if world.elastic:
            self._journal = StepJournal(
                world,
                self._local,
                self._optimizer.chunks,
                self._buffers.parameters,
                self._buffers.slots,
            )

    @property
    def bytes_sent(self) -> int:
        return self._sums.bytes_sent

    def last_backward(self, weight: float) -> None:
        """Gradients of this weight come now, and then the step: they may travel at once."""
        if self._context.settings.overlap is not False:
            self._buffers.heads[self._rank, StepHead.WEIGHT] = weight
            self._sums.last_backward()
            self._announced = True

    def expect_one_backward(self, weight_of: Callable[[], float]) -> None:
        self._weight_of = weight_of

    def _gradient_ready(self, entry: int) -> None:
        if self._weight_of is not None and not self._announced:
            self.last_backward(self._weight_of())
        self._sums.gradient_ready(entry)

    def before_step(self, mine: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """Sum the gradients, and take the step."""
        self._check_untouched()
        _, present = self._model.collect_gradients()
        head = self._buffers.heads[self._rank]
        self._mark += 1
        StepHead.write(head, mine, self._mark)
        head[self._buffers.present] = present
        head[self._speed_at] = mine.speed
        if self._journal is not None:
            head[self._buffers.taken.start + self._world.rank] = mine.taken
        watch.lap("compute")
        self._sums.begin()
        self._local.barrier()
        watch.lap("wait")
        totals = self._sum_heads(watch) if self._nodes.owns_slice else None
        factor = self._clip(totals, watch)
        if self._journal is not None:
            self._make_certain(self._journal, totals, watch)
        if totals is not None:
            self._step(totals, factor, watch)
        watch.lap("compute")
        self._sums.finish()
        self._announced = False
        self._local.barrier()
        watch.lap("communication")
        if totals is None:  # this rank owns no slice, and hears of the outcome now
            totals = self._buffers.head_sum.copy()
            self._step(totals, None, watch)
        return self._finish_step(totals)

    def _finish_step(self, totals: Vector) -> StepOutcome:
        """All of the node's parameters have been moved."""
        head = self._buffers.heads[self._rank]
        self._seen = self._sample()
        self._model.clear_gradients()  # the user's own step, which follows, moves nothing
        rejected, head[REJECTED] = bool(head[REJECTED]), 0
        self._done, self._begun = self._mark, None
        self.rounds += 1
        speeds, taken = totals[self._buffers.speeds], totals[self._buffers.taken]
        return StepHead.read(totals, rejected)._replace(
            speeds=speeds, taken=taken if taken.size else None
        )

    def snapshot(self) -> Tree:
        """What rounding carries over."""
        return {**copy_vectors(self._sums.residuals)}

    def restore(self, saved: Tree, same_ranks: bool) -> None:
        """What rounding on other ranks carried over does not fit these."""
        if same_ranks:
            fill_vectors(self._sums.residuals, saved)

    def close(self) -> None:
        """Give every rank's optimizer the state of all slices, and the memory back.

        The model keeps its parameters there until it is released.
        """
        self._sums.close()
        for undo in self._undo:
            undo()
        self._local.barrier()  # nobody's state is read any more
        del self._optimizer
        if self._journal is not None:
            self._journal.close()
        self._buffers.close()

    def abandon(self) -> None:
        """Leave the model and its optimizer alone; the other ranks are not asked."""
        if self._world.elastic:
            self._sums.abandon()
        for undo in self._undo:
            undo()

    def _make_certain(self, journal: StepJournal, totals: Vector | None, watch: Stopwatch) -> None:
        """From here on the step can be finished whoever is lost: all nodes have their sums."""
        moves = totals is not None and totals[StepHead.WEIGHT] > 0
        journal.begin(int(self._mark), len(self._optimizer.chunks) if moves else 0)
        if self._nodes.count > 1:
            self._sums.wait_for_all()
            self._world.barrier()
            watch.lap("communication")
        self._certain = self._mark

    def settle(self, left: World) -> Settled:
        """A step that one rank knows to be certain is finished by all. If none does, nothing has
        been moved, and the step has left no trace."""
        journal = self._journal
        assert journal is not None, "the world is elastic"
        found = left.allgather_values((self._world.rank, max(self._done, self._certain)))
        target = self._certain = max(certain for _, certain in found)
        moved = journal.is_done(int(target))
        left.barrier()  # all know it; now the journal changes
        if self._done == target:
            left.barrier()
            return Settled()
        totals: Vector = self._buffers.head_sum.copy()
        if not moved:
            if self._nodes.count == 1:  # heads are as they were: nobody has begun the next step
                totals = np.add.reduce(self._buffers.heads)
            here = [self._world.node_ranks.index(rank) for rank in self._on_node(found)]
            self._finish_slices(journal, totals, here)
        left.barrier()
        return Settled(True, self._finish_step(totals))

    def _on_node(self, found: list[tuple[int, float]]) -> list[int]:
        return [rank for rank, _ in found if rank in self._world.node_ranks]

    def _finish_slices(self, journal: StepJournal, totals: Vector, here: list[int]) -> None:
        """Move what is left of this rank's slices, and the first rank also those of lost ones."""
        mark, weight = int(self._certain), float(totals[StepHead.WEIGHT])
        owners = [] if weight == 0 else range(self._nodes.owners)
        mine = [self._rank] if self._rank in owners else []
        lost = [rank for rank in owners if rank not in here] if self._rank == min(here) else []
        factor = self._clip_factor()
        for owner in (*mine, *lost):
            done, rest = 0, self._sums.pieces_of(owner)
            if journal.has_begun(owner, mark):
                done, rest = journal.rest_of(owner, rest)
            optimizer = self._optimizer.for_pieces(rest, self._begun)
            if not journal.has_begun(owner, mark):
                journal.begin(mark, len(optimizer.chunks), owner)
            with optimizer.stepping(totals[self._buffers.present]):
                for number, chunk in enumerate(optimizer.chunks, done):
                    self._sums.write_for(chunk.piece, weight, chunk.gradient, factor is not None)
                    if factor is not None:
                        chunk.gradient *= chunk.gradient.dtype.type(factor)
                    journal.keep(number, chunk.piece, owner)
                    optimizer.step(chunk)
                    journal.done(number, owner)
        if self._begun is None and weight:  # it counts its steps
            self._begun = totals[self._buffers.present]
            with self._optimizer.stepping(self._begun):
                pass

    def _sum_heads(self, watch: Stopwatch) -> Vector:
        totals: Vector = np.add.reduce(self._buffers.heads)
        if self._heads_cross is not None:
            self._heads_cross.all_reduce(totals)
            watch.lap("communication")
        if self._rank == 0:
            self._buffers.head_sum[:] = totals
        StepHead.check(totals, self._mark, self._world.size)  # before anything moves
        return totals

    def _step(self, totals: Vector, factor: float | None, watch: Stopwatch) -> None:
        """Let the optimizer step on this rank's slices; with a factor their sums are known."""
        weight = float(totals[StepHead.WEIGHT])
        if not weight:
            return
        optimizer, sums, journal = self._optimizer, self._sums, self._journal
        self._begun = totals[self._buffers.present]
        with optimizer.stepping(self._begun):
            for number, chunk in enumerate(optimizer.chunks):
                if factor is None:
                    sums.write(chunk.piece, weight, chunk.gradient, watch)
                else:
                    scale = chunk.gradient.dtype.type(factor)
                    np.multiply(sums.part(chunk.piece), scale, out=chunk.gradient)
                if journal is not None:
                    journal.keep(number, chunk.piece)
                optimizer.step(chunk)
                if journal is not None:
                    journal.done(number)

    def _clip(self, totals: Vector | None, watch: Stopwatch) -> float | None:
        """By what to scale the gradient; with a largest norm, all sums must be known first."""
        if self._context.clip_norm is None:
            return None
        weight = 0.0 if totals is None else float(totals[StepHead.WEIGHT])
        sums = self._sums
        for piece in filter(length, sums.pieces):
            sums.write(piece, weight, sums.part(piece), watch)
        owns = self._nodes.owns_slice
        squares = np.array([sums.squares() if owns else 0.0])
        if self._heads_cross is not None:  # elsewhere the same sum may have other last bits
            self._heads_cross.broadcast(squares)
        self._buffers.heads[self._rank, SQUARES] = squares[0]
        self._local.barrier()
        return self._clip_factor()

    def _clip_factor(self) -> float | None:
        if self._context.clip_norm is None:
            return None
        norm = float(np.sqrt(self._buffers.heads[:, SQUARES].sum()))
        return min(1.0, self._context.clip_norm / (norm + 1e-6))  # as torch has it

    def _sample(self) -> bytes:
        """The values of a few parameters here and there."""
        return self._buffers.parameters.take(self._watched, mode="clip").tobytes()

    def _check_untouched(self) -> None:
        if self._sample() != self._seen:
            raise TrainingError(
                "something other than the optimizer changed the parameters, which the ranks of a "
                "node share, so every rank's change would add up. Let optimizer.step() make "
                "updates from gradients: only those are averaged. If all ranks make the same "
                'change (they clamp weights, for example), say keep_pace(..., exchange={"share": '
                "False}), or set exchange.share=false"
            )


def can_share(world: World, model: VectorModel, rule: Rule, settings: ExchangeSettings) -> bool:
    """Whether the optimizer's step may be divided among the ranks of a node."""
    return (
        settings.share
        and world.size > 1
        and isinstance(rule, GradientRule)
        and settings.matrix_rank is None
        and isinstance(model, ShareableModel)
        and model.step_is_elementwise()
    )


def make_gradient_exchange(
    world: World, model: VectorModel, rule: GradientRule, context: ExchangeContext
) -> Exchange:
    """The shared exchange where that is possible and the node's memory suffices, or the plain
    one."""
    if can_share(world, model, rule, context.settings):
        assert isinstance(model, ShareableModel)
        try:
            return SharedParametersExchange(world, model, rule, context)
        except WorldError as error:  # the same on all ranks
            if world.rank == 0:
                _log.warning("parameters are not shared between ranks: %s", error)
    return GradientExchange(world, model, rule, context)
