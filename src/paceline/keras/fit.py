"""A session of Keras' `fit`: where the ranks exchange, and what they agree on per epoch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import ArrayLike

from paceline.checkpoint.saver import OpenCheckpoint
from paceline.comm import World
from paceline.core.vectors import Vector
from paceline.errors import TrainingError
from paceline.frameworks.replica import FitLoop
from paceline.observe import Stopwatch
from paceline.rules import Rule, WeightRule
from paceline.runtime.failure import fail
from paceline.sync.make import load_common_weights, make_exchange, next_exchange_id
from paceline.sync.replicas import average_buffers, start_equal
from paceline.sync.settings import ExchangeContext, ExchangeSettings
from paceline.training.loop.stepper import StepLimits, Stepper, StepWishes

_SEED_STRIDE = 1_000_003
"""Between the seeds of two ranks' dropout."""


class FitSession:
    """Exchanges by a rule at the events of `fit`.

    All ranks end an epoch together, by every rule: one that has fewer batches takes part without
    samples until the others have ended. So all see the same figures and decide alike.
    """

    def __init__(
        self,
        world: World,
        loop: FitLoop,
        rule: Rule,
        settings: ExchangeSettings,
        limits: StepLimits,
    ) -> None:
        self.world, self._loop = world, loop
        resolved = rule.resolve(lossy=settings.lossy)
        early = isinstance(resolved, WeightRule) and resolved.start_after > 0
        averages = resolved.exchange_kind == "gradients" or early
        self.averages_gradients = world.size > 1 and averages
        loop.reseed(_SEED_STRIDE * world.rank)
        _share_optimizer(world, loop)
        start_equal(world, loop)
        context = ExchangeContext(next_exchange_id(world), settings, fail=fail)
        self._exchange = make_exchange(world, loop, rule, context)
        limits = limits._replace(refuses_nonfinite=not loop.scales_loss)
        self._stepper = Stepper(world.rank, loop, self._exchange, limits, Stopwatch(), self._wishes)
        self._stop_asked = False
        self._own: Vector | None = None

    @property
    def stop(self) -> bool:
        """Whether this rank asks to stop, or has heard that another does."""
        return self._stop_asked or self._stepper.stop_heard

    def ask_to_stop(self) -> None:
        """On this rank; the others hear it in the next exchange."""
        self._stop_asked = True

    def _wishes(self) -> StepWishes:
        return StepWishes(stop=self.stop)

    def average_gradients(self, samples: float) -> None:
        """Gradients of so many samples lie in the vector: average them over the ranks.

        A compiled step calls it in a thread of the backend, so waiting is watched here.
        """
        with self.watched():
            self._stepper.before(self._stepper.contribution(samples, samples, more=True))

    def after_batch(self, samples: float) -> None:
        """The optimizer has stepped on so many samples: exchange weights if it is time to."""
        with self.watched():
            self._stepper.after(self._stepper.contribution(samples, samples, more=True))

    def end_epoch(self) -> None:
        """Wait for the others, take part in their steps, and show what all have in common.

        Until `begin_epoch` the model is the rule's centre, or what comes nearest to one.
        """
        with self.watched():
            asynchronous = self._exchange.as_asynchronous()
            if asynchronous is not None:
                asynchronous.pause(lambda: OpenCheckpoint(None, 0), lambda _: self._show_common())
            else:
                self._catch_up()
                self._show_common()
            average_buffers(self.world, self._loop)

    def begin_epoch(self) -> None:
        """Go on with this rank's own weights."""
        if self._own is not None:
            self._loop.parameters()[:] = self._own
            self._loop.accept_parameters()
            self._own = None

    def agree(self, stop: bool) -> bool:
        """Whether any rank wants to stop; all ask together."""
        votes = np.array([float(stop or self.stop)])
        with self.watched():
            self.world.all_reduce(votes)
        return bool(votes[0])

    def check_place(self, place: str) -> None:
        """An error on all ranks if one of them is somewhere else in `fit`."""
        with self.watched():
            places = self.world.allgather_values(place)
        for rank, other in enumerate(places):
            if other != places[0]:
                raise TrainingError(
                    f"rank 0 has come to {places[0]} of fit, rank {rank} to {other}; a callback "
                    "that stops the training belongs into KeepPace(callbacks=[...])"
                )

    def mean(
        self, logs: Mapping[str, ArrayLike], samples: Mapping[str, float]
    ) -> dict[str, Vector]:
        """Each figure, a number or an array of them, averaged over the ranks, weighted by the
        samples behind it."""
        names = sorted(logs)
        with self.watched():
            known = self.world.allgather_values([(name, np.shape(logs[name])) for name in names])
            if any(other != known[0] for other in known):
                raise TrainingError(
                    f"the ranks have different figures at the end of the epoch: {known}; compile "
                    "the model alike on all ranks, and validate on all of them or on none"
                )
            figures = [np.asarray(logs[name], float) for name in names]
            sizes = np.array([figure.size for figure in figures], int)
            weights = np.repeat([samples[name] for name in names], sizes)
            flat = np.concatenate([np.empty(0), *(figure.ravel() for figure in figures)])
            sums = np.concatenate([weights * flat, weights])
            self.world.all_reduce(sums)
        totals, counted = np.split(sums, 2)
        means = totals / np.where(counted, counted, 1.0)
        pieces = np.split(means, np.cumsum(sizes))[:-1]
        shaped = zip(names, figures, pieces, strict=True)
        return {name: piece.reshape(figure.shape) for name, figure, piece in shaped}

    def leave(self) -> None:
        """All ranks have ended their last epoch: the model becomes the same everywhere."""
        self.begin_epoch()
        with self.watched():
            asynchronous = self._exchange.as_asynchronous()
            if asynchronous is not None:
                asynchronous.leave(self._stepper.watch)
            load_common_weights(self._loop, self._exchange)
            self._exchange.close()
            average_buffers(self.world, self._loop)

    def abandon(self) -> None:
        """This rank's `fit` has failed: stop serving other ranks."""
        self._exchange.abandon()

    def watched(self) -> AbstractContextManager[None]:
        """Around what waits for other ranks."""
        return self._stepper.watched()

    def _catch_up(self) -> None:
        """Take part without samples until no rank has a further batch in this epoch."""
        taken = self._stepper.drain()
        if self._exchange.replicas_stay_equal:
            self._even_out(taken)

    def _even_out(self, taken: int) -> None:
        """A step that was taken here may round otherwise than one that `fit` has compiled. So
        where there was one, all go on from a rank that took none."""
        counts = self.world.allgather_values(taken)
        if not any(counts):
            return
        root, state = counts.index(min(counts)), self._loop.optimizer_state()
        for array in (self._loop.parameters(), *state.values()):
            self.world.broadcast(array, root)
        self._loop.accept_parameters()
        self._loop.accept_optimizer_state(state)

    def _show_common(self) -> None:
        common = self._exchange.agree_on_weights()
        if common is not None:
            self._own = self._loop.parameters().copy()
            self._loop.parameters()[:] = common
            self._loop.accept_parameters()


def _share_optimizer(world: World, loop: FitLoop) -> None:
    """Give all ranks what rank 0's optimizer has gathered in an earlier `fit`, where by most rules
    each rank has momenta of its own. Optimizers of different kinds are found later."""
    state = loop.optimizer_state()
    shapes = world.allgather_values([[name, list(array.shape)] for name, array in state.items()])
    if all(other == shapes[0] for other in shapes):
        for array in state.values():
            world.broadcast(array)
        loop.accept_optimizer_state(state)
