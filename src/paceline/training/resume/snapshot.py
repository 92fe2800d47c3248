"""What a checkpoint holds of a run, and how a resumed run gets it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.trees import Tree
from paceline.core.vectors import checksum
from paceline.data import Stream
from paceline.data.sampling.partial_epoch import Ranges
from paceline.frameworks.random_state import (
    accept_generator_states,
    generator_states,
    seed_generators,
)
from paceline.frameworks.replica import Replica, WithStateNames
from paceline.training.resume.continuation import Continuation
from paceline.training.resume.part_checks import copy_into
from paceline.training.resume.resumed import Resumed

if TYPE_CHECKING:
    from paceline.training.loop.run import TrainingRun


def snapshot_common(run: TrainingRun) -> Tree:
    """What is the same for all ranks, from rank 0; the arrays are copies."""
    replica = run.replica
    tree: Tree = {
        "parameters": replica.parameters().copy(),
        "constants": replica.constants().copy(),
        "layout": [[e.name, list(e.shape), e.dtype, e.offset] for e in replica.layout.entries],
        **snapshot_progress(run),
    }
    for name in ("samples", "samples_in_epoch"):  # other ranks may continue from it
        tree["clock"][name] += run.worker.unreported_samples
    if run.exchange.replicas_stay_equal:
        tree["optimizer"] = replica.optimizer_state()
    if isinstance(replica, WithStateNames):
        tree["state"] = replica.locate_state()
    return tree


def snapshot_progress(run: TrainingRun) -> Tree:
    """How far the run is: what is common to all ranks, but for the model."""
    remainder = run.worker.position.remainder
    return {
        "remainder": {
            "size": remainder.size,
            "batch_size": remainder.batch_size,
            "ranges": _listed(remainder.ranges),
        },
        **{name: part.snapshot() for name, part in run.common_parts().items()},
    }


def snapshot_rank(run: TrainingRun, common_constants: int) -> Tree:
    """What only this rank knows; `common_constants` is a hash of those that rank 0 saves."""
    replica = run.replica
    tree: Tree = {
        "buffers": replica.buffers().copy(),
        "exchange": run.exchange.snapshot(),
        "generators": generator_states(),
        "worker": run.worker.snapshot(),
        "callbacks": run.state.callbacks.snapshot(),
    }
    if not run.exchange.replicas_stay_equal:
        tree["parameters"] = replica.parameters().copy()
        tree["optimizer"] = replica.optimizer_state()
    constants = replica.constants()
    if checksum(constants) != common_constants:
        tree["constants"] = constants.copy()
    return tree


def restore_replica(replica: Replica, resumed: Resumed, same_optimizer: bool) -> None:
    """Before the exchange is made: the model, equal on all ranks, and this rank's optimizer."""
    with resumed.blamed():
        _restore_replica(replica, resumed, same_optimizer)


def _restore_replica(replica: Replica, resumed: Resumed, same_optimizer: bool) -> None:
    copy_into(replica.parameters(), resumed.common["parameters"], "common.parameters")
    replica.accept_parameters()
    if replica.constants().size:
        part = resumed.own if "constants" in resumed.own else resumed.common
        copy_into(replica.constants(), part["constants"], "constants")
        replica.accept_constants()
    part = resumed.common if "optimizer" in resumed.common else resumed.own
    state = dict(part["optimizer"])
    if not same_optimizer:  # its settings are others now
        state.pop("groups", None)
    replica.accept_optimizer_state(state)
    if replica.buffers().size:
        copy_into(replica.buffers(), resumed.own["buffers"], "buffers")
        replica.accept_buffers()


def restore_run(run: TrainingRun, resumed: Continuation) -> None:
    """After the exchange is made: where this rank was."""
    with resumed.blamed():
        _restore_parts(run, resumed)
    if resumed.same_ranks:
        run.state.callbacks.restore(resumed.own["callbacks"])


def _restore_parts(run: TrainingRun, resumed: Continuation) -> None:
    own, exchange = resumed.own, run.exchange
    for name, part in run.common_parts().items():
        part.restore(resumed.common[name])
    if not exchange.replicas_stay_equal:
        copy_into(run.replica.parameters(), resumed.parameters(), "parameters")
        run.replica.accept_parameters()
    fresh, train = run.worker.position.remainder, run.state.data.train
    split = None if isinstance(train, Stream) else run.worker.split_epoch
    position, same_shards = resumed.position(fresh, split, exchange.asynchronous)
    if not same_shards and "deferred" in own["exchange"]:
        own["exchange"]["deferred"] = None  # a rank without batches may have some now
    exchange.restore(own["exchange"], resumed.same_ranks)
    run.worker.restore(own["worker"], position, resumed.same_ranks)
    if resumed.same_ranks:
        accept_generator_states(own["generators"])
    else:
        seed = run.config.seed + 1_000_003 * run.world.rank + 7_919 * (run.clock.step + 1)
        seed_generators(seed)  # those of the first steps must not come again


def _listed(ranges: Ranges | None) -> list[list[int | None]] | None:
    return None if ranges is None else [list(pair) for pair in ranges]
