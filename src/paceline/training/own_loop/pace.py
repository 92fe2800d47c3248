"""A model in pace, in a loop of your own: what each step of its optimizer exchanges."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress

from paceline.comm import World
from paceline.comm.counter import Counter, make_counter
from paceline.errors import ConfigError, RanksLost, TrainingError
from paceline.frameworks.replica import Loop, scale_gradients
from paceline.observe import Stopwatch, TimeSplit
from paceline.observe.trial import open_trial
from paceline.rules import Rule
from paceline.runtime.failure import fail
from paceline.runtime.world import confirm
from paceline.sync.interface import Contribution, Exchange, Settled, StepOutcome
from paceline.sync.make import load_common_weights, make_exchange, next_exchange_id
from paceline.sync.replicas import average_buffers, start_equal
from paceline.sync.settings import ExchangeContext
from paceline.training.balance import Balancer
from paceline.training.loop.recovery import Recovery
from paceline.training.loop.shard_epoch import ShardEpoch
from paceline.training.loop.stepper import StepLimits, Stepper
from paceline.training.loop.waiting import describe_loop
from paceline.training.own_loop.called_together import CalledTogether
from paceline.training.own_loop.together import weighted_mean
from paceline.training.session import ServedSamples, current_session

_log = logging.getLogger("paceline.training")


class Pace(CalledTogether):
    """A model in pace with its peers on the other ranks; made by `keep_pace`."""

    def __init__(
        self,
        world: World,
        loop: Loop,
        rule: Rule,
        context: ExchangeContext,
        limits: StepLimits,
        elastic: bool = False,
        insists_on_elastic: bool = False,
    ) -> None:
        self.world, self._loop, self._context = world, loop, context
        self._rule, self._overlaps = rule, bool(context.settings.overlap)
        self._mine: Contribution | None = None
        start_equal(world, loop)
        self.insists_on_elastic = insists_on_elastic
        """Whether the user has said so."""
        self._recovery = Recovery(world, loop, self._make_exchange) if elastic else None
        self._exchange = self._make_exchange(world)
        self._stepper = Stepper(world.rank, loop, self._exchange, limits, Stopwatch())
        self._is_stepped = False
        """Whether the step that is under way was finished when ranks were lost."""
        self._begun = 0
        """Steps of this rank, including the one under way."""
        self._seen = (0, 0, 0.0)
        """Of what is served: whose turn it is, the samples and their weight, up to now."""
        self._usual = Contribution(1, 1.0, more=True)
        self._by: object = None
        self._balancer: Balancer | None = None
        self._given: tuple[float, str] | None = None
        self._unit_weight: float | None = None
        """The weight of the mean losses whose gradients are added up; None: a step has one."""
        self._divisor: float | None = None
        """What the sum of gradients is to be divided by, to become a mean; None: it is one."""
        self._evaluated = False
        """Whether the step that is under way has evaluated a closure."""
        self._counter: Counter | None = None
        self._numbers_used = 0
        self._unit = "steps"
        """What the last contribution counts: samples of `shard`, the user's weights, or steps."""
        self.workers = self._exchange.workers
        """The ranks that train; the others hold the centre and get no batches."""
        self._trial = open_trial(world.rank, len(self.workers))
        if self._exchange.describe() and world.rank == 0:
            _log.info("rule %s: %s", rule.name, self._exchange.describe())

    def _make_exchange(self, world: World) -> Exchange:
        """All ranks of a world, at first and when others were lost."""
        context = self._context._replace(
            exchange_id=next_exchange_id(world), keeps_gradients=self._recovery is not None
        )
        exchange = make_exchange(world, self._loop, self._rule, context)
        if self._overlaps:
            exchange.expect_one_backward(lambda: self._begin_contribution().weight)
        return exchange

    @property
    def is_elastic(self) -> bool:
        """Whether it goes on without ranks that are lost."""
        return self._recovery is not None

    def give_up_ranks(self) -> None:
        """A further model is trained beside this one, so a lost rank ends the loop."""
        self._recovery = None

    @property
    def asynchronous(self) -> bool:
        """Whether ranks do not wait for each other by its rule."""
        return self._exchange.asynchronous

    @property
    def rejected(self) -> int:
        """Steps of this rank whose gradients were not finite and were left out."""
        return self._stepper.rejected

    @property
    def steps_itself(self) -> bool:
        """Whether the exchange moves the parameters, and the user's optimizer must not."""
        return self._exchange.steps_optimizer

    def weigh(self, weight: float, reduction: str = "mean") -> None:
        """Say what the next step's gradient stands for, if not samples: tokens, for example.

        With the reduction "sum" the loss was a sum over that weight, not a mean: so a step may
        consist of several backwards over unequal parts. With `overlap`, say it before backward.
        """
        if reduction not in ("mean", "sum"):
            raise ConfigError(f"reduction is {reduction!r}, expected mean or sum")
        if not 0 <= weight < math.inf:
            raise TrainingError(f"pace.weigh({weight}), expected a number of 0 or more")
        served = current_session().served
        if served is not None and served.how.dealt:
            raise TrainingError(
                "paceline.deal weighs its samples itself; say deal(..., weight=...) instead of "
                "pace.weigh"
            )
        if reduction == "sum" and self._overlaps:
            raise ConfigError(
                'pace.weigh(..., reduction="sum") divides gradients after backward, and '
                "exchange.overlap sends them before; omit one of them"
            )
        if self._mine is not None:
            raise TrainingError(
                "pace.weigh came after gradients had been sent; call it before loss.backward(), or "
                "omit overlap from keep_pace(..., exchange={...})"
            )
        self._given = weight, reduction

    def begin_micro_batch(self, weight: float) -> None:
        """The gradient of a mean loss of this weight is about to be added to those of the step.

        Sums of means of equal weight are in proportion; else what was added up is scaled first, so
        that in the end each mean counts by its weight.
        """
        if self._overlaps:
            raise ConfigError(
                "paceline.deal has several backwards in a step, and exchange.overlap sends "
                "gradients after the first; omit overlap from keep_pace(..., exchange={...})"
            )
        if self._unit_weight is not None and weight != self._unit_weight:
            scale_gradients(self._loop, self._unit_weight / weight)
        self._unit_weight = weight

    def counter(self, numbers: int) -> tuple[Counter, int]:
        """A counter that the ranks share, and the first of so many numbers of it that nobody has
        used; all ranks together at the first call."""
        if self._counter is None:
            self._counter = make_counter(self.world, lambda error: fail(self.world, error))
        first, self._numbers_used = self._numbers_used, self._numbers_used + numbers
        return self._counter, first

    def before_step(self, loss: float | None = None) -> float | None:
        """Exchange what the rule exchanges before the optimizer moves the weights.

        With the loss of a closure: each time it has been evaluated, if gradients are exchanged; the
        mean loss over all ranks is returned, by which the optimizer takes the same way on all.
        """
        if loss is not None and self._recovery is not None:
            raise ConfigError(
                "optimizer.step(closure) evaluates a step more than once, which a loop that goes "
                "on without lost ranks cannot take again; say keep_pace(..., elastic=False): then "
                "a lost rank ends the run"
            )
        averages = self._rule.exchange_kind == "gradients"
        if self._evaluated and not averages:
            return loss
        if not self._exchange.trains:
            raise TrainingError(
                f"rank {self.world.rank} is a server by exchange.servers and does not train; "
                "iterate over paceline.shard(...), which gives it no batches, or see pace.workers"
            )
        self._begun += not self._evaluated
        self._evaluated = loss is not None
        mine = self._begin_contribution()
        if self._divisor is not None:
            scale_gradients(self._loop, 1 / self._divisor)
        try:
            outcome = self._stepper.before(mine)
        except RanksLost:
            outcome = self._finish_step()
        if self._balancer is not None:
            speeds = outcome.speeds if outcome is not None else None
            self._balancer.note_step(self._stepper.compute_s, speeds)
        if loss is None or not averages or self.steps_itself:
            return loss
        return weighted_mean(self.world, loss, 0.0 if self._stepper.refused else mine.weight)

    def after_step(self) -> None:
        """Exchange what the rule exchanges after the optimizer has moved the weights."""
        mine, self._mine = self._begin_contribution(), None
        self._divisor, self._evaluated = None, False
        is_done, self._is_stepped = self._is_stepped, False
        if self._recovery is not None:
            self._recovery.epochs.note_step()
        try:
            self._stepper.after(exchanges=not is_done)
        except RanksLost:
            self._go_on()  # the replicas have been made equal
        if self._trial is not None:
            self._trial.note(mine.samples, self._stepper.watch, self._unit)

    def _go_on(self) -> Settled:
        """Ranks were lost: go on without them, if this loop can. Called where that is noticed."""
        if self._recovery is None:
            raise
        self.world, self._exchange, settled = self._recovery.go_on(
            self.world, self._exchange, self._stepper
        )
        self.workers = self._exchange.workers
        return settled

    def _finish_step(self) -> StepOutcome | None:
        """Ranks were lost before the optimizer's step: it was finished, or is taken again."""
        while True:
            settled = self._go_on()
            if settled.counts:
                self._is_stepped = True
                self._loop.clear_gradients()  # the user's own step, which follows, moves nothing
                return settled.outcome
            assert self._recovery is not None
            try:
                return self._stepper.before_again(self._recovery.epochs.taken)
            except RanksLost:
                continue

    def _together(self, work: Callable[[], None]) -> None:
        """What all ranks do together; again, if ranks are lost meanwhile."""
        while True:
            try:
                work()
                confirm(self.world)
                return
            except RanksLost:
                self._go_on()

    def begin_epoch(self, by: object, fresh: ShardEpoch) -> ShardEpoch:
        """A shard begins an epoch in a loop that goes on without ranks that are lost."""
        assert self._recovery is not None
        epochs = self._recovery.epochs
        if epochs.is_trained(by):  # the loop broke off the last one
            while not self._end_together(self._recovery):
                continue
        return epochs.begin(by, fresh, self.world.rank, is_trained=by is self._by)

    def end_epoch(self, by: object) -> bool:
        """A shard has ended; if this loop trains on it, so has its epoch. False: ranks were lost
        before all had ended it, so there may be more samples."""
        if self._recovery is not None:
            return not self._recovery.epochs.is_trained(by) or self._end_together(self._recovery)
        if by is self._by:
            self._exchange.end_epoch(self._stepper.watch)
        return True

    def _end_together(self, recovery: Recovery) -> bool:
        """Take part, without samples, until no rank has a batch; false if ranks were lost, and the
        others may have more now."""
        recovery.drains = True
        try:
            self._stepper.drain(recovery.epochs.taken)
            recovery.end_epoch(self._stepper)
        except RanksLost:
            outcome = self._go_on().outcome
            return outcome is not None and not outcome.more
        finally:
            recovery.drains = False
        return True

    def leave(self) -> None:
        """Take part, without samples, in the steps of the ranks that still have some."""
        if self._recovery is not None:
            self._recovery.leaves = True
            while not self._end_together(self._recovery):
                continue
            self._together(self._end)
        else:
            if self.world.size > 1 or self._exchange.asynchronous:
                self._stepper.drain()
            self._end()
        with suppress(RanksLost):  # all is done
            self._exchange.close()
            if self._counter is not None:
                self._counter.close()

    def _end(self) -> None:
        """No rank trains any more: make the model the same on all."""
        steps = self.world.allgather_values(self._begun)
        if self.world.size > 1 and not any(steps) and not self._resumed:
            raise TrainingError(
                "no rank called optimizer.step() in the keep_pace block, which is where ranks "
                "exchange what they learned: each has its own model now. Let optimizer.step() make "
                "the updates; torch.optim.SGD does p -= lr * p.grad"
            )
        idle = [rank for rank in self.workers if not steps[rank]]
        if idle and any(steps) and self.world.rank == 0:
            _log.warning(
                "rank %s took no step, and others up to %d: did it get no batch?",
                ", ".join(map(str, idle)),
                max(steps),
            )
        load_common_weights(self._loop, self._exchange)
        if self._exchange.replicas_stay_equal and not self.steps_itself:
            self._check_together()
        average_buffers(self.world, self._loop, self._exchange.trains)

    def abandon(self) -> None:
        """This rank has failed: stop serving other ranks."""
        self._exchange.abandon()
        if self._counter is not None:
            self._counter.abandon()

    def progress(self) -> tuple[int, int]:
        """A count that grows while this rank gets on, and its step."""
        return self._stepper.watch.laps, self._begun

    def time(self) -> TimeSplit:
        """Where this rank's time went since the last call; the user's own work is compute."""
        return self._stepper.watch.take()

    def _begin_contribution(self) -> Contribution:
        """What this rank brings to the step that is under way."""
        if self._mine is None:
            self._mine = self._make_contribution()
            if self._recovery is not None:
                self._mine = self._mine._replace(taken=self._recovery.epochs.taken)
        return self._mine

    def _make_contribution(self) -> Contribution:
        """What this rank brings to the step that begins."""
        if self._given is not None:
            (given, reduction), self._given = self._given, None
            self._unit = "weights"
            if reduction == "sum" and given:
                self._divisor = given
            return Contribution(given, given, more=True)
        served = current_session().served
        if served is not None:
            self._take_over(served)
        self._unit = "samples" if self._by is not None else "steps"
        if self._balancer is not None:
            return self._usual._replace(speed=self._balancer.speed)
        return self._usual

    def _take_over(self, served: ServedSamples) -> None:
        """Count what has been served since the last step."""
        same = self._seen[0] == served.turn
        _, seen, seen_weight = self._seen if same else (0, 0, 0.0)
        new, weight = served.samples - seen, served.weight - seen_weight
        self._seen = served.turn, served.samples, served.weight
        if self._by is not served.by:
            self._by = served.by
            if self._recovery is not None:
                self._recovery.epochs.train_on(served.by)
            self._follow(served.how.balancer)
            if self._trial is not None:
                self._trial.facts = describe_loop(self._rule, self._exchange, served.how)
        if served.how.dealt:
            if weight:
                assert self._unit_weight is not None, "each micro-batch has said its weight"
                self._divisor = weight / self._unit_weight
            self._unit_weight = None
        if self._by is None:
            self._usual = Contribution(1, 1.0, more=True)
        elif new or served.how.dealt:  # else another step on the same batch
            self._usual = Contribution(new, weight / served.how.full, more=True)

    def _follow(self, balancer: Balancer | None) -> None:
        """Let a shard know what steps take."""
        kind = self._rule.exchange_kind
        if balancer is not None and balancer.follows_speeds and kind != "gradients":
            raise ConfigError(
                f'speeds is "measured", which is for rule bsp; with rule {self._rule.name} '
                "use paceline.deal, where each rank takes the next samples when it is ready"
            )
        if balancer is not None and balancer.learns and self._exchange.asynchronous:
            raise ConfigError(
                f'cost is "learned", for which ranks begin epochs together, and rule '
                f"{self._rule.name} is asynchronous; give cost as length, an array or a function"
            )
        self._balancer = balancer
