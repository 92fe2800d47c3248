"""What a rank writes while it trains: events, progress, checkpoints on disk and in node memory."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from pathlib import Path

from paceline.checkpoint.node_saver import NodeSaver, has_room
from paceline.checkpoint.saver import Saver
from paceline.checkpoint.store import Store
from paceline.cluster.identity import NODE_STATE
from paceline.comm import World
from paceline.comm.rank0 import on_rank0
from paceline.config.run import RunConfig
from paceline.config.stopping import SAVE_EVERY
from paceline.frameworks import Replica
from paceline.observe import EventLog, make_progress
from paceline.observe.events import FLUSH_EVERY_S
from paceline.observe.run_log import LoggedProgress, RunLog
from paceline.runtime.job_dir import AGAIN, ELASTIC
from paceline.sync.interface import Exchange
from paceline.training.loop.state import RunOutputs
from paceline.training.resume.resumed import FOLDER

_STATES = 4
"""A model with its optimizer takes so many times its parameters at most, for those of ours."""

_log = logging.getLogger("paceline.training")


def open_outputs(
    stack: ExitStack,
    world: World,
    config: RunConfig,
    exchange: Exchange,
    replica: Replica,
    run_dir: Path,
    start: int,
) -> RunOutputs:
    """They are closed with the stack; all ranks open theirs together."""
    # A rank that is lost writes no more.
    every_s, generation = (0.0, world.generation_number) if world.elastic else (FLUSH_EVERY_S, None)
    place = run_dir / "events"
    events = EventLog(place, world.rank, world.node, every_s, generation, start)
    stack.enter_context(events)
    log = stack.enter_context(RunLog(run_dir, world.rank))
    progress = make_progress(world.rank, config.progress)
    stack.callback(progress.close)
    if world.rank == 0:
        progress = LoggedProgress(progress, log)
    every = config.checkpoint_every
    node_saver = _make_node_saver(world, exchange, replica)
    if node_saver is not None:
        stack.push(node_saver.end)
    elif every is None and os.environ.get(ELASTIC) == AGAIN:
        every = SAVE_EVERY
    saver = Saver(Store(run_dir / FOLDER, config.keep_checkpoints), every, _log.warning)
    stack.push(saver.end)
    return RunOutputs(run_dir, events, progress, saver, node_saver)


def _make_node_saver(world: World, exchange: Exchange, replica: Replica) -> NodeSaver | None:
    """For ranks that are started again from node memory, if it has room for checkpoints."""
    if NODE_STATE not in os.environ:
        return None
    place, replicas = Path(os.environ[NODE_STATE]), 1
    if not exchange.replicas_stay_equal:  # and the centre, or the mean
        replicas += world.size
    arrays = (replica.parameters(), replica.constants(), replica.buffers())
    nbytes = _STATES * replicas * sum(array.nbytes for array in arrays)
    if not on_rank0(world, lambda: has_room(place, nbytes)):
        if world.rank == 0:
            _log.warning(
                "%s has no room for checkpoints of up to %.0f MB: if a rank is lost, the others "
                "start again from the last one on disk", place.parent, nbytes / 1e6,
            )  # fmt: skip
        return None
    return NodeSaver(place / FOLDER, _log.warning)
