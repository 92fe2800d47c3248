"""What one run works with, on one rank: made by the Trainer, shared by its run and worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from paceline.checkpoint.node_saver import NodeSaver
from paceline.checkpoint.saver import Saver
from paceline.comm import World
from paceline.config.run import RunConfig
from paceline.core.trees import Tree
from paceline.core.vectors import Vector
from paceline.data import Source, Stream
from paceline.frameworks import Replica
from paceline.observe import EventLog, History, Progress, Stopwatch
from paceline.runtime.stop_requests import StopRequests
from paceline.sync.interface import Exchange
from paceline.training.balance import Balancer
from paceline.training.callbacks import CallbackList
from paceline.training.loop.clock import Clock
from paceline.training.loop.dealing import Dealer


class Datasets(NamedTuple):
    """What a run trains and validates on; no validation: None."""

    train: Source | Stream
    validation: Source | Stream | None
    balancer: Balancer | None = None
    """What training samples are split by, if not by their number."""
    weights: Vector | None = None
    """What each training sample counts in the mean of gradients, if not all count alike."""
    usual_batch: int | None = None
    """Samples of a batch on average, where its cost is given and not their number."""


class RunOutputs(NamedTuple):
    """Where a run writes."""

    run_dir: Path
    events: EventLog
    progress: Progress
    saver: Saver
    node_saver: NodeSaver | None = None
    """Where a lost rank ends the others, to be started again: checkpoints in node memory."""


@dataclass
class RunState:
    """The objects that Trainer, run and worker have in common."""

    config: RunConfig
    world: World
    replica: Replica
    exchange: Exchange
    data: Datasets
    outputs: RunOutputs
    callbacks: CallbackList
    stop_requests: StopRequests
    clock: Clock
    history: History
    identity: Tree
    """Facts that a resumed run must match."""
    start: int
    """When the run was started, in milliseconds: its events say so."""
    numbered_for: int
    """For how many workers the batches of an asynchronous run are numbered."""
    dealer: Dealer | None = None
    """For data.deal=dynamic."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    summary: Tree = field(default_factory=dict)
    """Facts for the summary of the run."""
    nodes: Sequence[str] = ()
    """The names of the machines that the ranks are on."""
    on_step: Callable[[], None] = lambda: None
    """Called before each step, when no batch is in hand."""
    epoch_begun: int | None = None
    """The last epoch whose begin callbacks know of; None: nor that training has begun."""
    stop_asked: bool = False
    """Set it on any rank; all ranks stop after the step that follows."""

    @property
    def batch_size(self) -> int:
        """Samples of one rank in a step."""
        return (self.data.usual_batch or self.config.data.batch_size) * self.config.accumulate

    @property
    def full_weight(self) -> float:
        """The weight of a full batch of one rank: it counts as 1."""
        weights = self.data.weights
        return self.batch_size * (1.0 if weights is None else float(weights.mean()))
