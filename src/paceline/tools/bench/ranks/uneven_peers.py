"""How others choose the sentences of each rank and step, for DDP.

The samplers are those of torch, transformers and lhotse, called as their users call them. The last
two need not be installed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler

SEED = 1
_BUDGETS_TRIED = 12


@dataclass(frozen=True)
class SamplingTask:
    """What a sampler is told."""

    lengths: Sequence[int]
    batch: int
    """Sentences per rank and step."""
    rank: int
    ranks: int


Batches = Callable[[int], Iterator[list[int]]]
"""This rank's batches of an epoch, as numbers of sentences."""


def equal_counts(task: SamplingTask) -> Batches:
    """torch's DistributedSampler."""
    sampler = DistributedSampler(task.lengths, task.ranks, task.rank, seed=SEED)
    return _in_batches(sampler, task.batch)


def grouped(task: SamplingTask) -> Batches:
    """transformers' sampler of `group_by_length`.

    It sorts pieces of the epoch that are multiples of a batch: here that of all ranks, so that
    ranks have similar lengths in every step.
    """
    from transformers.trainer_pt_utils import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        DistributedLengthGroupedSampler,
    )

    sampler = DistributedLengthGroupedSampler(
        task.batch * task.ranks,
        lengths=list(task.lengths),
        num_replicas=task.ranks,
        rank=task.rank,
        seed=SEED,
    )
    return _in_batches(sampler, task.batch)


def rebalanced(task: SamplingTask) -> Batches:
    """transformers' sampler that gives ranks with long sentences fewer of them."""
    from transformers.trainer_pt_utils import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        BatchRebalanceSampler,
    )

    return _by_epoch(
        BatchRebalanceSampler(
            lengths=list(task.lengths),
            effective_batch_size=task.batch * task.ranks,
            dp_size=task.ranks,
            grad_accum=1,
            rank=task.rank,
            seed=SEED,
            drop_last=False,
        )
    )


def bucketed(task: SamplingTask) -> Batches:
    """lhotse's DynamicBucketingSampler: batches of similar lengths with a budget for their sum.

    The budget is the smallest whose epoch has no more steps than those of the others.
    """
    cuts = _make_cuts(task.lengths)
    if task.batch == 1:
        return _lhotse(cuts, task, max_cuts=1)
    steps = -(-len(task.lengths) // (task.batch * task.ranks))
    least, most = task.batch * 1.0, task.batch * 2.0 * max(task.lengths)
    for _ in range(_BUDGETS_TRIED):
        middle = (least + most) / 2
        found = sum(1 for _ in _lhotse(cuts, task, max_duration=middle)(0))
        least, most = (middle, most) if found > steps else (least, middle)
    return _lhotse(cuts, task, max_duration=most)


def _make_cuts(lengths: Sequence[int]) -> Any:
    """Recordings that last as many seconds as sentences have tokens, for what sampling needs."""
    from lhotse import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        CutSet,
        MonoCut,
    )

    # It advises to read cuts from a file, and to set budgets that no single one exceeds.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"lhotse\.")
    return CutSet.from_cuts(
        MonoCut(id=str(place), start=0.0, duration=float(length), channel=0)
        for place, length in enumerate(lengths)
    )


def _lhotse(cuts: Any, task: SamplingTask, **limit: float) -> Batches:
    from lhotse.dataset.sampling import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        DynamicBucketingSampler,
    )

    sampler = DynamicBucketingSampler(
        cuts,
        shuffle=True,
        drop_last=False,
        world_size=task.ranks,
        rank=task.rank,
        seed=SEED,
        **limit,
    )

    def batches(epoch: int) -> Iterator[list[int]]:
        sampler.set_epoch(epoch)
        for batch in sampler:
            # The last steps may repeat sentences, as "7_dup0".
            yield [int(cut.id.partition("_")[0]) for cut in batch]

    return batches


def _in_batches(sampler: Any, batch: int) -> Batches:
    batched = BatchSampler(sampler, batch, drop_last=False)

    def batches(epoch: int) -> Iterator[list[int]]:
        sampler.set_epoch(epoch)
        yield from batched

    return batches


def _by_epoch(sampler: Any) -> Batches:
    def batches(epoch: int) -> Iterator[list[int]]:
        sampler.set_epoch(epoch)
        yield from sampler

    return batches


SAMPLERS: Mapping[str, Callable[[SamplingTask], Batches]] = {
    "ddp": equal_counts,
    "ddp-grouped": grouped,
    "ddp-rebalanced": rebalanced,
    "ddp-lhotse": bucketed,
}


def find_missing() -> dict[str, str]:
    """The samplers that this machine does not have, and why."""
    few = SamplingTask(range(1, 33), batch=1, rank=0, ranks=2)
    missing = {}
    for name, make in SAMPLERS.items():
        try:
            make(few)
        except ImportError as error:  # the package is missing, or too old to have the sampler
            package = (error.name or "").partition(".")[0]
            missing[name] = f"{error}; run: pip install --upgrade {package}"
    return missing
