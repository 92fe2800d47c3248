"""What a checkpoint holds of a run, and how a run takes it up."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from paceline.checkpoint.tree import Tree, as_plain, split
from paceline.core.vectors import checksum
from paceline.frameworks.random_state import (
    accept_generator_states,
    generator_states,
    seed_generators,
)
from paceline.observe import EpochRecord, TimeSplit
from paceline.training.resume.contents import copy_into
from paceline.training.resume.resumed import Resumed

if TYPE_CHECKING:
    from paceline.training.loop.run import TrainingRun

_log = logging.getLogger("paceline.training")
_CLOCK = ("samples_per_epoch", "epoch", "step", "samples", "samples_in_epoch")
_COUNTS = ("step", "samples", "samples_in_epoch")
"""Those of which a rank between two meetings has its own idea."""


def snapshot_common(run: TrainingRun) -> Tree:
    """What is the same for all ranks, from the one that leads; the arrays are copies."""
    replica, leg = run.replica, run.worker.place.leg
    tree: Tree = {
        "parameters": replica.parameters().copy(),
        "constants": replica.constants().copy(),
        "layout": [[e.name, list(e.shape), e.dtype, e.offset] for e in replica.layout.entries],
        "rule": run.config.describe()["rule"],
        "clock": _true_clock(run),
        "leg": {"size": leg.size, "batch_size": leg.batch_size, "ranges": _listed(leg.ranges)},
        "history": [asdict(record) for record in run.history],
        "stopping": run.stopping.snapshot(),
        "divergence": run.divergence.snapshot(),
        "run": run.snapshot(),
    }
    if run.exchange.replicas_stay_equal:
        tree["optimizer"] = replica.optimizer_state()
    locate_state = getattr(replica, "locate_state", None)
    if locate_state is not None:
        tree["state"] = locate_state()
    return tree


def snapshot_rank(run: TrainingRun, leaders_constants: int) -> Tree:
    """What only this rank knows; `leaders_constants` is a hash of those that the leader saves."""
    worker, replica = run.worker, run.replica
    split = worker.watch.peek()
    tree: Tree = {
        "buffers": replica.buffers().copy(),
        "exchange": run.exchange.snapshot(),
        "generators": generator_states(),
        "counts": {name: getattr(run.clock, name) for name in _COUNTS},
        "supposed": worker.estimated_samples,
        "taken": worker.place.taken,
        "ended": worker.place.ended,
        "loss_sum": worker.place.loss_sum,
        "left_out": worker.place.left_out,
        "seconds": worker.place.elapsed(),
        "rejected": worker.stepper.rejected,
        "time": asdict(split),
        "callbacks": [_state_of(callback) for callback in run.trainer.callbacks],
    }
    if not run.exchange.replicas_stay_equal:
        tree["parameters"] = replica.parameters().copy()
        tree["optimizer"] = replica.optimizer_state()
    constants = replica.constants()
    if checksum(constants) != leaders_constants:
        tree["constants"] = constants.copy()
    return tree


def restore_replica(replica: Any, resumed: Resumed, same_optimizer: bool) -> None:
    """Before the exchange is made: the model, equal on all ranks, and this rank's optimizer."""
    with resumed.blamed():
        _take_up_replica(replica, resumed, same_optimizer)


def _take_up_replica(replica: Any, resumed: Resumed, same_optimizer: bool) -> None:
    copy_into(replica.parameters(), resumed.common["parameters"], "common.parameters")
    replica.accept_parameters()
    if replica.constants().size:
        own = resumed.own.get("constants", resumed.common["constants"])
        copy_into(replica.constants(), own, "constants")
        replica.accept_constants()
    part = resumed.common if "optimizer" in resumed.common else resumed.own
    state = dict(part["optimizer"])
    if not same_optimizer:  # its settings are others now
        state.pop("groups", None)
    replica.accept_optimizer_state(state)
    if replica.buffers().size:
        copy_into(replica.buffers(), resumed.own["buffers"], "buffers")
        replica.accept_buffers()


def restore_run(run: TrainingRun, resumed: Resumed) -> None:
    """After the exchange is made: where this rank was."""
    with resumed.blamed():
        _take_up_counts(run, resumed)
    if resumed.same_ranks:
        for callback, state in zip(run.trainer.callbacks, resumed.own["callbacks"], strict=False):
            accept = getattr(callback, "accept_state", None)
            if accept is not None and state is not None:
                accept(state)


def _take_up_counts(run: TrainingRun, resumed: Resumed) -> None:
    common, own, worker = resumed.common, resumed.own, run.worker
    for name in _CLOCK:
        setattr(run.clock, name, common["clock"][name])
    run.history[:] = [
        EpochRecord(**{**record, "time": TimeSplit(**record["time"])})
        for record in common["history"]
    ]
    run.stopping.restore(common["stopping"])
    run.divergence.restore(common["divergence"])
    run.restore(common["run"])
    if not run.exchange.replicas_stay_equal:
        copy_into(run.replica.parameters(), resumed.parameters(), "parameters")
        run.replica.accept_parameters()
    samples = None if not hasattr(run.train, "__len__") else len(run.train)
    batch_size = run.config.data.batch_size * run.config.accumulate
    place = worker.place
    if not run.exchange.asynchronous:
        place.leg, place.taken, same_leg = resumed.leg(samples, run.world.size, batch_size)
        place.ended = same_leg and own["ended"]
        if not same_leg and "deferred" in own["exchange"]:
            own["exchange"]["deferred"] = None  # who had no more batches may have some now
    place.loss_sum, place.left_out = resumed.share("loss_sum"), resumed.share("left_out")
    place.before_s = own["seconds"]
    run.exchange.restore(own["exchange"], resumed.same_ranks)
    if resumed.same_ranks:
        accept_generator_states(own["generators"])
        for name in _COUNTS:
            setattr(run.clock, name, own["counts"][name])
        worker.estimated_samples, worker.stepper.rejected = own["supposed"], own["rejected"]
        worker.stepper.steps = run.clock.step
        worker.watch.put_back(TimeSplit(**own["time"]))
    else:
        worker.stepper.steps = run.clock.step
        seed = run.config.seed + 1_000_003 * run.world.rank + 7_919 * (run.clock.step + 1)
        seed_generators(seed)  # those of the first steps would come again


def _true_clock(run: TrainingRun) -> Tree:
    """With all that the world has consumed, for ranks that go on as others."""
    clock: Tree = {name: getattr(run.clock, name) for name in _CLOCK}
    for name in ("samples", "samples_in_epoch"):
        clock[name] += run.worker.unknown
    return clock


def _state_of(callback: Any) -> Any:
    """Plain values that a callback wants back, if it has any; a checkpoint does without those that
    no file can hold."""
    state = getattr(callback, "state", None)
    if not callable(state):
        return None
    try:
        plain = as_plain(state())
        split({"state": plain})
    except Exception as error:
        _log.warning(
            "the state of the callback %s is not saved: %s", type(callback).__name__, error
        )
        return None
    return plain


def _listed(ranges: Any) -> Any:
    return None if ranges is None else [list(pair) for pair in ranges]
