"""One run of a Trainer: what synchronous and asynchronous ones share."""

from __future__ import annotations

import logging
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from paceline.checkpoint.saver import OpenCheckpoint, Saver
from paceline.checkpoint.tree import Saved
from paceline.comm import World
from paceline.comm.rank0 import on_rank0
from paceline.config.stopping import parse_target
from paceline.core.trees import Tree
from paceline.core.vectors import checksum
from paceline.data.padding import Pad
from paceline.errors import ConfigError, Interrupted, OutputError, TrainingError
from paceline.observe import EpochRecord, TimeSplit
from paceline.observe.machine import describe_machine
from paceline.runtime.stop_requests import REQUEUE
from paceline.sync.make import with_common_weights
from paceline.training.callbacks import Logs
from paceline.training.loop.divergence import Divergence
from paceline.training.loop.state import RunState
from paceline.training.loop.stopping import Stopping
from paceline.training.loop.validation import validate
from paceline.training.loop.waiting import judge_steps, judge_waiting
from paceline.training.loop.worker import StepHook, Worker
from paceline.training.model_file import save_best
from paceline.training.resume.carried import Carried
from paceline.training.resume.snapshot import snapshot_common, snapshot_rank

if TYPE_CHECKING:
    from paceline.training.resume.continuation import Continuation

_log = logging.getLogger("paceline.training")

ASKED = "a callback asked for it"
REMEDY = "try a lower learning rate, or no momentum on workers that push to a centre"
_FIGURES = ("train_loss", "val_loss", "val_accuracy", "learning_rate", "samples_per_s")


class TrainingRun(ABC):
    """All epochs of a run, on one rank."""

    def __init__(self, state: RunState, worker: Worker) -> None:
        self.state, self.worker = state, worker
        self.world, self.config, self.replica = state.world, state.config, state.replica
        self.clock, self.history, self.exchange = state.clock, state.history, state.exchange
        self.events, self.progress, self.saver, self.node_saver = state.outputs[1:]
        self.notify = state.callbacks.notify
        self.stopping = Stopping(self.config.stop)
        self.divergence = Divergence()
        self._paused_at = 0.0

    @abstractmethod
    def train(self) -> str | None:
        """To the last epoch; the reason if the run ended early."""

    def settle(self, left: World) -> None:
        """Ranks were lost, and those that are left come here: finish what was under way."""
        self.worker.settle(left)

    def write_generation(self, resumed: Continuation | None) -> None:
        """With which ranks the run goes on, what each had of the epoch, and what is left of it."""
        if self.world.rank:
            return
        carried = resumed if isinstance(resumed, Carried) else None
        ranges, after = self.worker.position.remainder.ranges, None
        left = None if ranges is None else [list(span) for span in ranges]
        if resumed is not None and carried is None:
            after = [resumed.facts.get("start", 0), resumed.facts.get("generation", 0)]
            if left == resumed.common["remainder"]["ranges"]:  # dealt as it was
                left = None
        self.events.write(
            "generation",
            step=self.clock.step,
            samples=self.clock.samples,
            epoch=self.clock.epoch + 1,
            ranks=self.world.size,
            lost=[] if carried is None else list(carried.change.ranks),
            asked=0 if carried is None else len(carried.change.asked),
            joined=0 if carried is None else len(carried.change.joined),
            taken=None if carried is None else carried.taken,
            left=left,
            after=after,
            samples_per_epoch=self.clock.samples_per_epoch,
            asynchronous=self.exchange.asynchronous,
        )

    def write_start(self) -> None:
        """On what the run was started or resumed, and by which command."""
        if self.world.rank == 0:
            facts = describe_machine()
            self.events.write("start", step=self.clock.step, nodes=list(self.state.nodes), **facts)

    def begin(self) -> None:
        """Tell callbacks, unless they know it from an earlier generation of the world."""
        if self.state.epoch_begun is None:
            self.state.epoch_begun = 0
            self.notify("on_train_begin")

    def begin_epoch(self, epoch: int) -> None:
        """The same of an epoch."""
        if self.state.epoch_begun != epoch:
            self.state.epoch_begun = epoch
            self.notify("on_epoch_begin", epoch)

    @abstractmethod
    def snapshot(self) -> Tree:
        """What rank 0 knows and no other part of a checkpoint has."""

    @abstractmethod
    def restore(self, saved: Tree) -> None:
        """Go on from what `snapshot` gave."""

    def common_parts(self) -> dict[str, Saved]:
        """What is saved once, by rank 0, under these names."""
        parts: dict[str, Saved] = {
            "clock": self.clock,
            "history": self.history,
            "stopping": self.stopping,
            "divergence": self.divergence,
            "run": self,
        }
        balancer = self.state.data.balancer
        return parts | ({"balance": balancer} if balancer and balancer.learns else {})

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after that many steps, on disk or in node memory."""
        node = self.node_saver
        return self.saver.is_due(step) or (node is not None and node.is_due(step))

    def open_checkpoint(self, on_disk: bool = True) -> OpenCheckpoint:
        """Rank 0 begins one: on disk, or else where it is due."""
        self._paused_at = perf_counter()
        step, constants = self.clock.step, checksum(self.replica.constants())
        node = self.node_saver
        if on_disk or node is None or self.saver.is_due(step):
            return OpenCheckpoint(self.saver.open(step), constants)
        number = node.open(step)  # when the last is written, and what it has cost is known
        again_s = node.again_s(step, run_freely=not self.exchange.replicas_stay_equal)
        return OpenCheckpoint(number, constants, again_s)

    def keep(self, opened: OpenCheckpoint) -> None:
        """Hand this rank's parts of a checkpoint to the saver; training goes on at once."""
        self.events.flush()  # those of steps that are not done again
        saver = self._begin_period(opened)
        if opened.number is None:
            return
        own = snapshot_rank(self, opened.constants)
        saver.add(opened.number, f"rank-{self.world.rank}", own)
        if self.world.rank == 0:
            saver.add(opened.number, "common", snapshot_common(self))
            facts = self.facts()
            parts = [f"rank-{rank}" for rank in facts["workers"]]
            parts += [f"server-{rank}" for rank in facts["servers"]]
            saver.commit(opened.number, ["common", *parts], facts)
            if self.node_saver is not None and opened.again_s is not None:
                self.node_saver.note_pause(perf_counter() - self._paused_at)

    def _begin_period(self, opened: OpenCheckpoint) -> Saver:
        """Where this checkpoint goes; until the next is due."""
        step, node = self.clock.step, self.node_saver
        if node is None or opened.again_s is None:
            self.saver.begin_period(step)
            if node is not None:
                node.begin_period(step)
            return self.saver
        node.begin_next(step, opened.again_s)
        return node

    def facts(self) -> Tree:
        """Facts about the run that a resumed one needs, or must match."""
        exchange, clock = self.exchange, self.clock
        asynchronous = exchange.as_asynchronous()
        servers = [] if asynchronous is None else list(asynchronous.roles.holders) or [0]
        return {
            "step": clock.step,
            "epoch": clock.epoch,
            "samples": clock.samples,
            "ranks": self.world.size,
            "workers": list(exchange.workers),
            "servers": servers,
            "numbered_for": self.state.numbered_for,
            "start": self.state.start,
            "generation": self.world.generation_number,
            "optimizer": self.config.describe()["optimizer"],
            **self.state.identity,
        }

    def leave(self, world: World) -> NoReturn:
        """End a run that has saved, and can be resumed; all ranks of `world` call it."""
        problem = on_rank0(world, self.saver.finish)
        if problem is not None:
            raise problem
        requests = self.state.stop_requests
        everyone = world.allgather_values((requests.reason, requests.code))
        known = [pair for pair in everyone if pair[0] is not None]
        reason, code = known[0] if known else ("another rank was told to end", REQUEUE)
        raise Interrupted(
            f"stopped after step {self.clock.step} ({reason}) and saved; {self._how_to_go_on()}",
            code,
        )

    def _how_to_go_on(self) -> str:
        folder, named = str(self.state.outputs.run_dir), (self.config.model, self.config.data.train)
        if all(value is None or isinstance(value, str) for value in named):
            return f"go on with: paceline train --resume {shlex.quote(folder)}"
        return (
            f"model and data were given in Python: start the same again with resume={folder!r} "
            f"(paceline mpi-learn: --restore {shlex.quote(folder)})"
        )

    def step_hooks(self, began: float) -> tuple[Callable[[], None], StepHook]:
        """What a worker calls before and after each step from now on."""
        before_run = self.clock.samples

        def before() -> None:
            self.notify("on_batch_begin", self.clock.step + 1)

        def after(loss: float | None, samples: int) -> None:
            rate = (self.clock.samples - before_run) / (perf_counter() - began)
            done = self.clock.samples_in_epoch
            epoch = min(self.clock.epoch + 1, self.config.epochs)
            self.progress.update(epoch, done, loss, rate)
            self.divergence.see(loss)
            self.notify("on_batch_end", self.clock.step, {"loss": loss, "samples": samples})

        return before, after

    def validate(self, world: World, is_wanted: Callable[[], bool]) -> Logs | None:
        """The figures of the centre on the validation data, shared among the ranks of `world`;
        None if one of them `is_wanted` elsewhere."""
        validation = self.state.data.validation
        if validation is None:
            return {}
        size, target = self.config.data.validation_batch_size, self.config.stop.target
        with with_common_weights(self.replica, self.exchange):
            loaders = self.config.data.loaders
            watch = self.state.watch
            logs = validate(world, self.replica, validation, size, watch, loaders, is_wanted)
            self._keep_if_best(logs)
        if logs is None:
            return None
        metric = parse_target(target)[0] if target is not None else ""
        if metric.startswith("val_") and logs.get(metric) is None:
            there = ", ".join(name for name, value in logs.items() if value is not None)
            raise ConfigError(
                f"stop.target is {target!r}, but this model and loss have no {metric}; use one of: "
                f"{there}"
            )
        self.notify("on_validation_end", logs)
        return logs

    def _keep_if_best(self, logs: Logs | None) -> None:
        loss = None if logs is None else logs["val_loss"]
        if self.config.keep != "best" or self.world.rank > 0 or loss is None:
            return
        if all(record.val_loss is None or loss < record.val_loss for record in self.history):
            save_best(self.replica.save, self.state.outputs.run_dir)

    def validate_last(self) -> Logs:
        """The figures of the end of the run; none if it is asked to end now: all is trained, and
        the model is worth more than figures."""
        logs = self.validate(self.world, lambda: self.state.stop_requests.reason is not None)
        if logs is None and self.world.rank == 0:
            _log.warning("the last validation is left out: the run was told to end")
        return logs or {}

    def make_record(
        self,
        epoch: int,
        samples: int,
        train_loss: float | None,
        seconds: float,
        logs: Logs,
        time: TimeSplit,
    ) -> EpochRecord:
        """What became of an epoch; `logs` are those of its validation, if it had one."""
        return EpochRecord(
            epoch=epoch,
            samples=samples,
            seconds=seconds,
            train_loss=train_loss,
            val_loss=logs.get("val_loss"),
            val_accuracy=logs.get("val_accuracy"),
            learning_rate=self.replica.learning_rate,
            samples_per_s=samples / seconds,
            time=time,
            metrics=further_figures(logs),
        )

    def note(self, record: EpochRecord) -> Logs:
        """Keep an epoch's record and show it; its figures."""
        if record.train_loss is None and record.samples:
            raise TrainingError(
                f"no batch of epoch {record.epoch} gave a finite loss, and all "
                f"{record.samples:,} samples were rejected; look at the data (numbers that are not "
                "finite? no valid target?), or lower the learning rate"
            )
        self.history.append(record)
        self._judge(record)
        figures: Logs = {name: getattr(record, name) for name in _FIGURES} | record.metrics
        details: Tree = {"epoch": record.epoch, **figures}
        self.events.write(
            "epoch",
            step=self.clock.step,
            seconds=record.seconds,
            loss=record.train_loss,
            samples=record.samples,
            **details,
        )
        self.progress.epoch_end(record)
        return figures

    def _judge(self, record: EpochRecord) -> None:
        before = self.divergence.warning
        found = self.divergence.judge(record.train_loss)
        if found is not None and before is None and self.world.rank == 0:
            _log.warning("epoch %d: %s; %s", record.epoch, found, REMEDY)

    def save_history(self) -> None:
        """A full disk must not end a run that is otherwise well: there may be room at the end."""
        try:
            self.history.save(self.state.outputs.run_dir / "history.jsonl")
        except OutputError as error:
            _log.warning("%s", error)

    def _report_padding(self) -> None:
        """How much of the training batches was padding, if samples were padded."""
        collate = getattr(self.state.data.train, "collate", None)
        if not isinstance(collate, Pad):
            return
        counts = np.array([collate.padding, collate.elements], float)
        self.world.all_reduce(counts)
        share = float(counts[0] / counts[1]) if counts[1] else 0.0
        self.state.summary["padding"] = share
        if share:
            self.progress.message(f"padding: {100 * share:.1f} % of the training batches")

    def end(self, reason: str | None) -> None:
        """Say why the run ended early, if it did, and that it has ended."""
        self.state.summary["warning"] = self.world.bcast_value(self.divergence.warning)
        judge_steps(self.state, self.worker.times)
        judge_waiting(self.state)
        self._report_padding()
        if reason:
            self.progress.message(f"stopped after epoch {len(self.history)}: {reason}")
        self.notify("on_train_end")


def further_figures(logs: Logs) -> dict[str, float]:
    """Those of a validation that only some models have."""
    usual = ("val_loss", "val_accuracy")
    return {name: value for name, value in logs.items() if name not in usual and value is not None}


def mean_over_ranks(world: World, split: TimeSplit) -> TimeSplit:
    """Where the time of all ranks went, divided by their number."""
    seconds = np.array([split.compute, split.wait, split.communication, split.data])
    world.all_reduce(seconds)
    return TimeSplit(*(float(value) / world.size for value in seconds))
