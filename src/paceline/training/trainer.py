"""The Trainer: joins model, data, rule and world, and trains."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.comm import World
from paceline.comm.rank0 import on_rank0
from paceline.config.reading import read_config
from paceline.config.run import RunConfig
from paceline.core.trees import Tree
from paceline.data import Stream
from paceline.data.cache.node_cache import NodeCache
from paceline.errors import ConfigError, RanksLost
from paceline.frameworks.random_state import seed_generators
from paceline.observe import History, Progress, Stopwatch, setup_logging
from paceline.runtime.failure import ending_together, fail
from paceline.runtime.stop_requests import StopRequests
from paceline.runtime.watchdog import watched
from paceline.runtime.world import (
    admit,
    become_member,
    confirm,
    end_generation,
    enter,
    init,
    is_newcomer,
    next_world,
    part_with,
)
from paceline.sync.interface import Exchange
from paceline.sync.make import make_exchange, next_exchange_id
from paceline.sync.replicas import start_equal
from paceline.sync.settings import ExchangeContext
from paceline.training.build import build_replica
from paceline.training.callbacks import CallbackList
from paceline.training.claim import Claim
from paceline.training.datasets import data_cache
from paceline.training.keras_callbacks import adapt_callbacks
from paceline.training.loop.async_run import AsyncRun
from paceline.training.loop.clock import Clock
from paceline.training.loop.dealing import Dealer
from paceline.training.loop.run import TrainingRun
from paceline.training.loop.state import Datasets, RunState
from paceline.training.loop.sync_run import SyncRun
from paceline.training.loop.worker import most_in_hand
from paceline.training.membership.recruiter import Recruiter
from paceline.training.model_file import check_room, save_model
from paceline.training.outputs import open_outputs
from paceline.training.resume.carried import Carried
from paceline.training.resume.continuation import Continuation
from paceline.training.resume.resumed import Resumed, check_identity, find_resumed
from paceline.training.resume.snapshot import restore_replica, restore_run
from paceline.training.run_data import check_elastic, make_dealer, open_run_data
from paceline.training.run_dir import find_run_dir, make_run_dir, summarise, write_outcome
from paceline.training.run_facts import batches_to_grant, describe_start, identify, numbered_for

if TYPE_CHECKING:
    from paceline.comm.joining import Newcomer

_log = logging.getLogger("paceline.training")


@dataclass(frozen=True)
class Result:
    """What a run gave."""

    model: Any
    """The trained model, the same on every rank."""
    history: History
    summary: Tree
    run_dir: Path


class Trainer:
    """Trains one model on all ranks of the world.

        result = Trainer("mnist", "digits", epochs=3, data={"batch_size": 32}).fit()

    Every keyword is a setting of the run, as in a YAML file (see RunConfig): `rule`, `optimizer`,
    `schedule`, `loss`, `epochs`, `seed`, `stop`, ... A `config` may be given instead of them.
    Run the same script under `paceline run -n 4 -- script.py` for 4 ranks. `callbacks` are ours
    (paceline.Callback), or with a Keras model those of Keras, which run once, on rank 0.
    """

    def __init__(
        self,
        model: object = None,
        train: object = None,
        validation: object = None,
        *,
        callbacks: Sequence[object] = (),
        config: RunConfig | None = None,
        world: World | None = None,
        **settings: object,
    ) -> None:
        data = {"train": train, "validation": validation}
        given = {key: value for key, value in data.items() if value is not None}
        layers: list[Tree] = [
            {"model": model} if model is not None else {},
            settings,
            {"data": given},
        ]
        if config is not None and (model is not None or given or settings):
            raise TypeError("Trainer takes a config or single settings, not both")
        self.config = config or read_config(*layers)
        self.callbacks = adapt_callbacks(callbacks)
        self._given_world = world
        self._state: RunState | None = None
        self._training_run: TrainingRun | None = None
        self._carried: Carried | None = None
        self._stop_requests = StopRequests()
        self._claim: Claim | None = None
        self._recruiter: Recruiter | None = None

    def stop(self) -> None:
        """Ask all ranks to stop after the next step; any one rank may ask."""
        if self._state is not None:
            self._state.stop_asked = True

    def interrupt(self, reason: str = "asked to") -> None:
        """Ask all ranks to save and end after the next step, so that the run can go on later; any
        one rank may ask. Then `fit` raises Interrupted."""
        self._stop_requests.ask(reason)

    def fit(self) -> Result:
        """Train to the last epoch, or to an early stop.

        A rank that is told to end (SIGTERM, SIGUSR1, SIGUSR2, Ctrl-C, max_time) lets all ranks
        save; then they raise Interrupted.
        """
        self.world = self._given_world or init()
        check_elastic(self.config, self.world)
        self._stop_requests.limit(self.config.max_time)
        try:
            with (
                ending_together(self.world),
                self._stop_requests.handling_signals(),
                data_cache(self.config, self.world) as cache,
            ):
                return self._fit(cache)
        finally:
            self._stop_requests = StopRequests()  # those of this run are not for the next
            if self._recruiter is not None:
                self._recruiter.close()
                self._recruiter = None
            if self._claim is not None:
                self._claim.release()
                self._claim = None

    def _fit(self, cache: NodeCache | None) -> Result:
        """Train in one generation of the world after the other, until the run is done."""
        self.clock, self.history = Clock(), History()
        self._training_run = self._carried = None
        goes_on = self._enter(cache) if is_newcomer() else None
        if goes_on is None:
            self._start = self.world.bcast_value(time.time_ns() // 1_000_000)
        while True:
            try:
                return self._fit_generation(cache, goes_on)
            except RanksLost:
                if is_newcomer():
                    raise SystemExit(0) from None
                goes_on, self._carried = self._carried or self._carry_over(), None

    def _enter(self, cache: NodeCache | None) -> Carried:
        """This process was started to join a run: get ready, then wait to be let in."""
        setup_logging(1, 2)  # it is not the one that speaks for all
        self._prepare(cache)
        try:
            self.world = enter(self.world)
            goes_on, self.run_dir = Carried.receive(self.replica, self.world)
        except RanksLost as error:
            _log.info("%s", error)
            raise SystemExit(0) from None
        self._identity = identify(self.config, self.world, self.replica, self._data)
        check_identity(goes_on.facts, self._identity, self.run_dir)
        self._start = int(goes_on.facts["start"])
        return goes_on

    def _carry_over(self) -> Carried | None:
        """The ranks have changed: those that go on form the next world, and finish what was under
        way; None if no step had been taken."""
        run = self._training_run
        while True:
            self.world = next_world(self.world)
            try:
                if run is None:
                    return None
                newcomers, asked = self._part_with_some(run)
                run.settle(self.world)
                goes_on = Carried.gather(run, self.world, asked)
                world = admit(self.world, newcomers)
                if world is not self.world:
                    self.world = world
                    goes_on = goes_on.share(run, world)
                break
            except RanksLost:  # again
                continue
        run.exchange.abandon()
        fewest = self.config.elastic.min
        if self.world.size < fewest:
            self._stop_requests.ask(
                f"{self.world.size} ranks are left, and elastic.min is {fewest}"
            )
        return goes_on

    def _part_with_some(self, run: TrainingRun) -> tuple[Sequence[Newcomer], tuple[int, ...]]:
        """Ranks that were asked to leave end here; newcomers that rank 0 brings, and who has left,
        of the old world."""
        called = self._recruiter.call() if self._recruiter is not None else ([], ())
        newcomers, asked = called if self.world.rank == 0 else ([], ())
        asked = tuple(self.world.bcast_value(asked))
        if asked:
            before = self.world.allgather_values(run.world.rank)
            leaving = [at for at, rank in enumerate(before) if rank in asked]
            if self.world.rank in leaving and self._claim is not None:
                self._claim.release()  # the next rank 0 may be faster than our end
                self._claim = None
            self.world = part_with(self.world, leaving)
        return newcomers, asked

    def _fit_generation(self, cache: NodeCache | None, goes_on: Carried | None) -> Result:
        config, world = self.config, self.world
        setup_logging(world.rank, world.size)
        if goes_on is None:
            self._prepare(cache)
            self._identity = identity = identify(config, world, self.replica, self._data)
            self._resumed = self._find_resumed(identity)
        resumed = goes_on or self._resumed
        self._exchange = exchange = self._make_exchange(self._data, resumed)
        watch = Stopwatch()
        dealer = None
        try:
            dealer = make_dealer(config, world, self._data, watch)
            stopped = self._run(resumed, dealer, watch)
            exchange.close()
            if dealer is not None:
                dealer.close()
        except BaseException as error:
            run = self._training_run
            settles = isinstance(error, RanksLost) and run is not None and run.exchange is exchange
            if not settles:
                exchange.abandon()
            if dealer is not None:
                dealer.abandon()
            raise
        self.replica.release()
        seconds = time.perf_counter() - self._began
        summary = summarise(self.history, world.size, config.rule.name, seconds, stopped)
        summary |= self._state.summary if self._state is not None else {}
        save = partial(save_model, self.replica.save, self.run_dir)
        on_rank0(world, lambda: write_outcome(self.run_dir, config, save().name, summary))
        return Result(
            getattr(self.replica, "module", self.replica), self.history, summary, self.run_dir
        )

    def _prepare(self, cache: NodeCache | None) -> None:
        """What is made once: data, model, and the checkpoint to go on from."""
        config, world = self.config, self.world
        self._began = time.perf_counter()
        seed_generators(config.seed)  # functions that make data may draw random numbers
        self._data = data = open_run_data(config, world, cache)
        if not isinstance(data.train, Stream):
            self.clock.samples_per_epoch = len(data.train)
        self.replica = build_replica(config, world)
        start_equal(world, self.replica)

    def _make_exchange(self, data: Datasets, resumed: Continuation | None) -> Exchange:
        config, world = self.config, self.world
        frame = ExchangeContext(
            exchange_id=next_exchange_id(world),
            settings=config.exchange,
            batches=batches_to_grant(config, world, data, resumed),
            most_in_hand=most_in_hand(config.data.loaders),
            saved=resumed.centre if resumed is not None else None,
            seed=config.seed,
            clip_norm=config.clip_norm,
            fail=fail,
        )
        exchange = make_exchange(world, self.replica, config.rule, frame)
        if config.check_replicas is not None and not exchange.replicas_stay_equal:
            raise ConfigError(
                "check_replicas compares replicas that are equal after every step, and by rule "
                f"{config.rule.name} each goes its own way; leave it out"
            )
        return exchange

    def _run(
        self, resumed: Continuation | None, dealer: Dealer | None, watch: Stopwatch
    ) -> str | None:
        """All epochs; the reason if they ended early."""
        config, world, data, before = self.config, self.world, self._data, self._state
        goes_on = isinstance(resumed, Carried)
        self._claim_together(goes_on)
        parts = world, config, self._exchange, self.replica, self.run_dir, self._start
        with ExitStack() as stack:
            outputs = open_outputs(stack, *parts)
            self._state = state = RunState(
                config,
                world,
                self.replica,
                self._exchange,
                data,
                outputs,
                CallbackList(self.callbacks, self),
                self._stop_requests,
                self.clock,
                self.history,
                self._identity,
                start=self._start,
                numbered_for=numbered_for(world, resumed),
                dealer=dealer,
                watch=watch,
                nodes=world.allgather_values(world.node),
                on_step=self._change_ranks,
                epoch_begun=before.epoch_begun if before is not None and goes_on else None,
                stop_asked=before is not None and goes_on and before.stop_asked,
            )
            run = (AsyncRun if self._exchange.asynchronous else SyncRun)(state)
            if resumed is not None:
                restore_run(run, resumed)
            if goes_on and data.balancer is not None:
                data.balancer.change_world(world)
            confirm(world)
            self._training_run = run
            self._begin_generation(state, resumed)
            self._announce(outputs.progress, resumed)
            run.write_generation(resumed)
            if not goes_on:
                run.write_start()
            for saver in filter(None, (outputs.saver, outputs.node_saver)):
                saver.begin_period(self.clock.step)
            limits = config.stall_warning_s, config.stall_timeout_s
            stack.enter_context(watched(lambda: (state.watch.laps, state.clock.step), *limits))
            try:
                return run.train()
            except RanksLost:
                self._carried = self._carry_over()  # while its last events can be written
                raise

    def _begin_generation(self, state: RunState, resumed: Continuation | None) -> None:
        """All ranks train in this world now, newcomers among them."""
        world = state.world
        if is_newcomer():
            become_member(world)
        if not world.elastic or world.rank > 0:
            return
        change = resumed.change if isinstance(resumed, Carried) else None
        if self._recruiter is None:
            self._recruiter = Recruiter(self.run_dir, self.config.elastic, change is not None)
        self._recruiter.begin_generation(world, state.nodes, change)

    def _change_ranks(self) -> None:
        """Before a step of rank 0: let ranks join or leave, if some are to."""
        if self._recruiter is not None and self._recruiter.wants_change:
            end_generation(self.world)

    def _announce(self, progress: Progress, resumed: Continuation | None) -> None:
        """Say what is trained, by whom, and where it goes on."""
        size = self.clock.samples_per_epoch
        if isinstance(resumed, Carried):
            progress.begin(self.config.epochs, size, resumed.describe())
            return
        text = describe_start(self.config, self.world, self._exchange, self._data)
        progress.begin(self.config.epochs, size, text)
        if resumed is not None:
            progress.message(resumed.describe())

    def _claim_together(self, goes_on: bool) -> None:
        """Rank 0 holds the run directory; if it was lost, the next one does."""
        if not goes_on:
            found = self._found if self._resumed else None
            claim = partial(self._claim_run_dir, found)
            self.run_dir = on_rank0(self.world, lambda: self.run_dir if self._claim else claim())
        elif self.world.rank == 0 and self._claim is None:
            self._claim = Claim(self.run_dir)

    def _claim_run_dir(self, found: Path | None) -> Path:
        run_dir, self._claim = make_run_dir(self.config, found)
        check_room(run_dir, self.replica.parameters().nbytes + self.replica.buffers().nbytes)
        return run_dir

    def _find_resumed(self, identity: Tree) -> Resumed | None:
        config = self.config
        self._found = on_rank0(self.world, lambda: find_run_dir(config))
        resumed = find_resumed(config.resume, self._found, self.world)
        if resumed is not None:
            resumed.check_model(self.replica.layout)
            check_identity(resumed.facts, identity, resumed.run_dir)
            same = resumed.facts["optimizer"] == config.describe()["optimizer"]
            restore_replica(self.replica, resumed, same)
        return resumed
