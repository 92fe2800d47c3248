"""Batches by number: the same as in plain epochs, each once, and no thread left waiting."""

import gc
import random
import threading
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data import (
    ArraySource,
    BatchGrants,
    DatasetSource,
    Shard,
    Stream,
    batches_per_epoch,
    granted_batches,
    training_batches,
)
from paceline.data.sampling import work_queue as dealing
from paceline.data.sampling.prefetch import THREAD_NAME
from paceline.errors import ConfigError, DataError

LIMIT_S = 10.0


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    if threads():
        gc.collect()
    assert threads() == []


def arrays(samples: int) -> ArraySource:
    return ArraySource(np.arange(samples) * 10, np.arange(samples))


def granted(*ranges: tuple[int, int], end: bool = True) -> BatchGrants:
    grants = BatchGrants()
    for first, last in ranges:
        grants.grant(first, last)
    if end:
        grants.end()
    return grants


def places(batches) -> list[list[int]]:
    return [batch.indices.tolist() for batch in batches]


def plain(samples, batch_size, epochs, **options) -> list[list[int]]:
    """The batches of one rank alone, epoch after epoch."""
    shard = Shard(0, 1)
    return [
        batch.indices.tolist()
        for epoch in range(epochs)
        for batch in training_batches(
            arrays(samples), shard=shard, batch_size=batch_size, epoch=epoch, **options
        )
    ]


class Watched(BatchGrants):
    """Grants that tell when a thread has asked for one more than there are, and training too."""

    def __init__(self) -> None:
        super().__init__()
        self.thread_waits = threading.Event()
        self.training_waits = threading.Event()

    def take(self):
        if not self._granted:
            self.thread_waits.set()
        return super().take()

    def expect(self, wait):
        if not self.outstanding:
            self.training_waits.set()
        return super().expect(wait)


@pytest.mark.parametrize("prefetch", [None, 0, 1, 3])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("samples", "batch_size"), [(23, 5), (20, 5), (3, 8), (6, 1)])
def test_one_worker_trains_as_in_plain_epochs(prefetch, shuffle, samples, batch_size):
    source = arrays(samples)
    count = batches_per_epoch(source, batch_size)
    grants = granted((0, 2), (2, 3 * count))
    found = list(
        granted_batches(
            source, grants, batch_size=batch_size, seed=4, shuffle=shuffle, prefetch=prefetch
        )
    )
    assert places(found) == plain(samples, batch_size, 3, seed=4, shuffle=shuffle)
    for batch in found:
        assert batch.inputs.tolist() == (batch.indices * 10).tolist()


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_workers_granted_at_random_use_every_sample_once_per_epoch(prefetch):
    draw = random.Random(prefetch)
    source, epochs = arrays(47), 4
    total = epochs * batches_per_epoch(source, 5)
    grants = [BatchGrants() for _ in range(3)]
    dealt = [
        granted_batches(source, own, batch_size=5, seed=1, prefetch=prefetch) for own in grants
    ]
    numbers: list[list[int]] = [[] for _ in grants]
    found: list[list[list[int]]] = [[] for _ in grants]
    free = 0
    while free < total or any(own.outstanding for own in grants):
        worker = draw.randrange(3)
        if free < total and draw.random() < 0.4:
            last = min(total, free + draw.randint(1, 4))
            grants[worker].grant(free, last)
            numbers[worker] += range(free, last)
            free = last
        elif grants[worker].outstanding:
            found[worker].append(next(dealt[worker]).indices.tolist())
    for own, batches in zip(grants, dealt, strict=True):
        own.end()
        assert list(batches) == []
    by_number = dict(zip(chain(*numbers), chain(*found), strict=True))
    assert [by_number[number] for number in range(total)] == plain(47, 5, epochs, seed=1)
    for epoch in range(epochs):
        own = range(epoch * total // epochs, (epoch + 1) * total // epochs)
        assert sorted(chain(*(by_number[number] for number in own))) == list(range(47))


@given(samples=st.integers(1, 60), batch_size=st.integers(1, 9), cut=st.integers(0, 200))
def test_two_shares_make_an_epoch(samples, batch_size, cut):
    source = arrays(samples)
    count = batches_per_epoch(source, batch_size)
    cut = count + cut % (count + 1)
    first, second = granted((count, cut)), granted((cut, 2 * count))
    seen = [
        place
        for grants in (first, second)
        for batch in granted_batches(source, grants, batch_size=batch_size)
        for place in batch.indices.tolist()
    ]
    assert sorted(seen) == list(range(samples))


def test_the_order_of_an_epoch_is_drawn_once_while_two_are_in_use(monkeypatch):
    drawn = []
    draw = dealing.order_of
    monkeypatch.setattr(
        dealing,
        "order_of",
        lambda source, seed, epoch, s: drawn.append(epoch) or draw(source, seed, epoch, s),
    )
    grants = granted((1, 2), (2, 4), (0, 1), (4, 5), (3, 4))
    found = places(granted_batches(arrays(4), grants, batch_size=2))
    expected = plain(4, 2, 3)
    assert found == [expected[number] for number in (1, 2, 3, 0, 4, 3)]
    # Two batches make an epoch; the last number returns to epoch 1, which left for epoch 2.
    assert drawn == [0, 1, 2, 1]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_outstanding_counts_until_training_has_the_batch(prefetch):
    grants = Watched()
    grants.grant(0, 3)
    grants.grant(7, 7)
    batches = granted_batches(arrays(10), grants, batch_size=2, prefetch=prefetch)
    assert grants.outstanding == 3
    next(batches)
    if prefetch == 3:
        # All are prepared by now, and still only one has been handed over.
        assert grants.thread_waits.wait(LIMIT_S)
    assert grants.outstanding == 2
    next(batches)
    next(batches)
    assert grants.outstanding == 0
    grants.grant(3, 4)
    assert grants.outstanding == 1
    assert places([next(batches)]) == plain(10, 2, 1)[3:4]
    batches.close()


def test_asking_without_a_grant_and_without_a_thread_is_an_error():
    batches = granted_batches(arrays(4), granted((0, 1), end=False), batch_size=2, prefetch=0)
    next(batches)
    with pytest.raises(AssertionError, match="would wait forever"):
        next(batches)


@pytest.mark.parametrize("word", ["grant", "end", "drop"])
@pytest.mark.parametrize("before", [0, 1])
def test_with_a_thread_training_waits_until_it_hears(word, before):
    grants = Watched()
    grants.grant(0, before)
    batches = granted_batches(arrays(8), grants, batch_size=2, prefetch=1)
    found = places(next(batches) for _ in range(before))
    training = threading.Thread(target=lambda: found.extend(places(batches)))
    training.start()
    assert grants.training_waits.wait(LIMIT_S)
    if word == "drop":
        grants.drop()
    else:
        if word == "grant":
            grants.grant(before, before + 2)
        grants.end()
    training.join(LIMIT_S)
    assert not training.is_alive()
    assert found == plain(8, 2, 1)[: before + 2 * (word == "grant")]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_after_a_drop_not_even_a_prepared_batch_comes(prefetch):
    grants = Watched()
    grants.grant(0, 3)
    batches = granted_batches(arrays(10), grants, batch_size=2, prefetch=prefetch)
    next(batches)
    if prefetch == 3:
        assert grants.thread_waits.wait(LIMIT_S)
    grants.drop()
    assert grants.outstanding == 0
    assert grants.take() is None
    assert list(batches) == []


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_a_batch_dropped_while_it_is_prepared_does_not_come(prefetch):
    grants = granted((0, 1), end=False)
    source = arrays(10)
    take = source.take

    def take_and_drop(indices):
        if grants.outstanding == 2:
            grants.drop()
        return take(indices)

    source.take = take_and_drop
    batches = granted_batches(source, grants, batch_size=2, prefetch=prefetch)
    next(batches)
    grants.grant(1, 3)
    assert list(batches) == []


@pytest.mark.parametrize("way", ["close", "del"])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_giving_up_ends_a_thread_that_waits_for_a_grant(way, prefetch):
    grants = Watched()
    grants.grant(0, 1)
    batches = granted_batches(arrays(8), grants, batch_size=2, prefetch=prefetch)
    next(batches)
    (thread,) = threads()
    assert grants.thread_waits.wait(LIMIT_S)
    if way == "close":
        batches.close()
    else:
        del batches
    assert not thread.is_alive()  # who does not hear of it is given up after a while, and lives


def test_an_error_in_training_ends_a_thread_that_waits_for_a_place():
    batches = granted_batches(arrays(8), granted((0, 4)), batch_size=2, prefetch=1)
    next(batches)
    # The error is kept, and with it the frames it went through: nothing ends by being forgotten.
    with pytest.raises(KeyError) as kept:
        batches.throw(KeyError("loss"))
    assert threads() == []
    assert kept.traceback


def test_an_interrupt_while_training_waits_ends_the_thread_at_once(monkeypatch):
    grants = Watched()
    grants.grant(0, 1)
    batches = granted_batches(arrays(8), grants, batch_size=2, prefetch=1)
    next(batches)
    assert grants.thread_waits.wait(LIMIT_S)
    wait = grants._changed.wait

    # No real signal: one that comes just before the wait begins would be noticed only after it.
    def interrupted():
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return wait()

    monkeypatch.setattr(grants._changed, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert threads() == []


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_an_error_of_the_source_comes_after_the_batches_before_it(prefetch):
    class Broken:
        def __len__(self):
            return 6

        def __getitem__(self, number):
            if number == 4:
                raise OSError("disk on fire")
            return number

    grants = granted((0, 3), end=False)
    batches = granted_batches(
        DatasetSource(Broken()), grants, batch_size=2, shuffle=False, prefetch=prefetch
    )
    assert places([next(batches), next(batches)]) == [[0, 1], [2, 3]]
    with pytest.raises(DataError, match=r"sample 4 of Broken cannot be read.*disk on fire"):
        next(batches)
    assert list(batches) == []


def test_only_what_is_not_cheap_is_prefetched():
    batches = granted_batches(arrays(4), granted((0, 2)), batch_size=2)
    next(batches)
    assert threads() == []
    batches = granted_batches(DatasetSource([1, 2, 3]), granted((0, 2)), batch_size=2)
    next(batches)
    assert len(threads()) == 1
    batches.close()


@pytest.mark.parametrize(
    "ask",
    [lambda s: granted_batches(s, BatchGrants(), batch_size=2), lambda s: batches_per_epoch(s, 2)],
)
def test_a_stream_is_refused(ask):
    message = (
        r"^a stream cannot be split among asynchronous workers; give data with a length, or "
        r"use a synchronous rule \(bsp, average, diloco\)$"
    )
    with pytest.raises(DataError, match=message):
        ask(Stream(lambda: iter(range(4))))


def test_wrong_settings_are_refused_at_once():
    with pytest.raises(ConfigError, match="batch_size is 0"):
        granted_batches(arrays(4), BatchGrants(), batch_size=0)
    with pytest.raises(ConfigError, match="prefetch is -1"):
        granted_batches(arrays(4), BatchGrants(), batch_size=2, prefetch=-1)


@pytest.mark.parametrize(("first", "last"), [(-1, 2), (3, 2)])
def test_a_range_that_is_none_is_not_granted(first, last):
    with pytest.raises(AssertionError, match=f"batches {first} to {last}"):
        BatchGrants().grant(first, last)


@pytest.mark.parametrize("word", [BatchGrants.end, BatchGrants.drop])
def test_nothing_is_granted_after_the_end(word):
    grants = BatchGrants()
    word(grants)
    with pytest.raises(AssertionError, match="granted after the end"):
        grants.grant(0, 1)
