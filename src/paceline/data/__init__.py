"""Data: sources and streams of samples, dealt to the ranks so that each is used exactly once."""

from paceline.data.batch import Batch
from paceline.data.convert import as_source
from paceline.data.open import open_data
from paceline.data.sampling.epochs import evaluation_batches, training_batches
from paceline.data.sampling.partial_epoch import Leg
from paceline.data.sampling.prefetch import prefetched
from paceline.data.sampling.shards import Plan, Shard, epoch_order, plan_steps
from paceline.data.sampling.work_queue import Tickets, batches_per_epoch, dealt_batches
from paceline.data.sources import ArraySource, DatasetSource, Source
from paceline.data.streams import Stream

__all__ = [
    "ArraySource",
    "Batch",
    "DatasetSource",
    "Leg",
    "Plan",
    "Shard",
    "Source",
    "Stream",
    "Tickets",
    "as_source",
    "batches_per_epoch",
    "dealt_batches",
    "epoch_order",
    "evaluation_batches",
    "open_data",
    "plan_steps",
    "prefetched",
    "training_batches",
]
