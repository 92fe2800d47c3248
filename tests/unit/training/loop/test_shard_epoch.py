"""What is left of an epoch when ranks are lost, and who gets it."""

import numpy as np

from paceline.comm import run_world
from paceline.data import EpochRemainder, Shard
from paceline.data.sampling.split import CountSplit
from paceline.training.loop.shard_epoch import ShardEpoch, ShardEpochs

SAMPLES, BATCH = 40, 2


def fresh(rank, size):
    def split(remainder):
        return CountSplit(remainder, SAMPLES)

    ranks, remainder = tuple(range(size)), EpochRemainder(size, BATCH)
    return ShardEpoch(("data", 0), 0, remainder, ranks, Shard(rank, size), split)


def begin(rank, size, taken, stepped):
    """A rank in the middle of the first epoch."""
    epochs = ShardEpochs()
    place = epochs.begin("shard", fresh(rank, size), rank, is_trained=True)
    place.taken, place.stepped = taken, stepped
    return epochs


def samples_of(place, first, last):
    """Those in some of a rank's batches."""
    split, rank = place.split(place.remainder), place.shard.rank
    order = np.arange(SAMPLES)
    return [n for step in range(first, last) for n in order[split.share(step, rank)].tolist()]


def rest_of(place):
    return samples_of(place, place.taken, place.split(place.remainder).batches(place.shard.rank))


def lose(world, epochs, old_rank, reported, leaves=False):
    reported = None if reported is None else np.array(reported, float)
    before, deal = epochs.plan(world, old_rank, leaves, reported)
    epochs.change(deal, world.rank)
    return before


def test_what_a_lost_rank_had_not_reported_is_dealt_to_the_others():
    """Rank 1 of 4 had taken two batches at the last exchange, and others have a third in hand."""

    def program(world):
        old = [0, 2, 3][world.rank]
        epochs = begin(old, 4, taken=3, stepped=2)
        had = samples_of(epochs.current, 0, 3)
        assert lose(world, epochs, old, [2, 2, 2, 2]) == [0, 2, 3]
        return had + rest_of(epochs.current)

    lost = samples_of(fresh(1, 4), 0, 2)
    used = [n for part in run_world(3, program) for n in part]
    assert sorted(used + lost) == list(range(SAMPLES))


def test_what_a_lost_rank_still_had_in_hand_is_dealt_again():
    """Rank 1 is lost, and rank 3 before the others have taken the step that was under way."""

    def first(world):
        epochs = begin([0, 2, 3][world.rank], 4, taken=1, stepped=0)
        own = samples_of(epochs.current, 0, 1)
        lose(world, epochs, [0, 2, 3][world.rank], None)
        return epochs, own

    held = run_world(3, first)

    def second(world):
        epochs, own = held[world.rank]
        lose(world, epochs, world.rank, None)
        return own + rest_of(epochs.current)

    used = [n for part in run_world(2, second) for n in part]
    assert sorted(used) == list(range(SAMPLES))


def test_what_was_in_hand_counts_once_a_step_was_taken():
    def first(world):
        epochs = begin([0, 2, 3][world.rank], 4, taken=1, stepped=0)
        own = samples_of(epochs.current, 0, 1)
        lose(world, epochs, [0, 2, 3][world.rank], None)
        epochs.note_step()
        return epochs, own

    held = run_world(3, first)

    def second(world):
        epochs, own = held[world.rank]
        lose(world, epochs, world.rank, [0, 0, 0])
        return own + rest_of(epochs.current)

    used = [n for part in run_world(2, second) for n in part]
    assert sorted(used + held[2][1]) == list(range(SAMPLES))


def test_a_rank_that_has_yet_to_begin_the_epoch_gets_its_part():
    """It was in the last exchange of the epoch before when a rank was lost."""

    def program(world):
        epochs, had = ShardEpochs(), []
        if world.rank == 0:
            epochs = begin(0, 3, taken=1, stepped=0)
            had = samples_of(epochs.current, 0, 1)
        lose(world, epochs, world.rank, None)
        if world.rank == 1:
            epochs.begin("shard", fresh(1, 2), 1, is_trained=True)
        return had + rest_of(epochs.current)

    used = [n for part in run_world(2, program) for n in part]
    assert sorted(used) == list(range(SAMPLES))


def test_who_has_left_the_loop_gets_nothing():
    def program(world):
        leaves = world.rank == 1
        epochs = ShardEpochs() if leaves else begin(world.rank, 4, taken=2, stepped=2)
        lose(world, epochs, world.rank, [2, 20, 2, 2], leaves)
        return rest_of(epochs.current) if epochs.current else []

    parts = run_world(3, program)
    lost = samples_of(fresh(3, 4), 0, 2)
    taken = [n for rank in range(3) if rank != 1 for n in samples_of(fresh(rank, 4), 0, 2)]
    others = rest_of(fresh(1, 4))
    assert parts[1] == []
    used = [n for part in parts for n in part]
    assert sorted(used + lost + taken + others) == list(range(SAMPLES))


def test_ranks_in_different_epochs_go_on_as_they_were():
    def program(world):
        epochs = begin(world.rank, 3, taken=1, stepped=1)
        epochs.current.name = ("data", world.rank)
        left = rest_of(epochs.current)
        lose(world, epochs, world.rank, [1, 1, 1])
        return left == rest_of(epochs.current)

    assert run_world(2, program) == [True, True]
