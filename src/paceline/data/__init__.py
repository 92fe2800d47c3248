"""Data: sources and streams of samples, split among the ranks so that each is used once."""

from paceline.data.batch import Batch
from paceline.data.builtin import digits, mnist
from paceline.data.convert import as_source
from paceline.data.open import open_data
from paceline.data.padding import Nest, Pack, Pad
from paceline.data.sampling.epochs import evaluation_batches, training_batches
from paceline.data.sampling.partial_epoch import EpochRemainder
from paceline.data.sampling.prefetch import prefetched
from paceline.data.sampling.shards import Shard, StepPlan, epoch_order, plan_steps
from paceline.data.sampling.work_queue import BatchGrants, batches_per_epoch, granted_batches
from paceline.data.sources import ArraySource, DatasetSource, Source
from paceline.data.streams import Stream

__all__ = [
    "ArraySource",
    "Batch",
    "BatchGrants",
    "DatasetSource",
    "EpochRemainder",
    "Nest",
    "Pack",
    "Pad",
    "Shard",
    "Source",
    "StepPlan",
    "Stream",
    "as_source",
    "batches_per_epoch",
    "digits",
    "epoch_order",
    "evaluation_batches",
    "granted_batches",
    "mnist",
    "open_data",
    "plan_steps",
    "prefetched",
    "training_batches",
]
