"""Several loaders: the same batches in the same order, prepared at the same time."""

import gc
import itertools
import threading
import time
from functools import partial
from itertools import count

import numpy as np
import pytest

from paceline import Trainer
from paceline.comm import SoloWorld
from paceline.data import Batch, Shard, evaluation_batches, prefetched, training_batches
from paceline.data.sampling.prefetch import THREAD_NAME
from paceline.errors import ConfigError
from paceline.frameworks.numpy import NumpyReplica


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    if threads():
        gc.collect()
    assert threads() == []


class Uneven:
    """A source some of whose batches take longer than others."""

    name, cheap = "uneven", False

    def __len__(self):
        return 60

    def take(self, indices):
        time.sleep(0.004 if indices[0] % 3 == 0 else 0.0)
        return Batch(indices * 10, indices, len(indices), indices)


@pytest.mark.parametrize("loaders", [1, 2, 5])
def test_any_number_of_loaders_gives_the_same_batches(loaders):
    options = {"shard": Shard(1, 2), "batch_size": 4}
    for batches in (partial(training_batches, seed=3, epoch=2), evaluation_batches):
        plain = [batch.targets.tolist() for batch in batches(Uneven(), prefetch=0, **options)]
        ahead = [batch.targets.tolist() for batch in batches(Uneven(), loaders=loaders, **options)]
        assert ahead == plain


def test_loaders_work_at_the_same_time():
    together = threading.Barrier(3)

    def prepare(item):
        together.wait(20)  # breaks, and fails the test, unless three are in here at once
        return item

    assert list(prefetched(range(9), 3, 3, prepare)) == list(range(9))


def test_an_error_waits_for_the_slower_items_before_it():
    failed = threading.Event()

    def prepare(item):
        if item == 2:
            failed.set()
            raise OSError("sample 2 on fire")
        assert failed.wait(20)
        return item

    items = prefetched(itertools.count(), 3, 3, prepare)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(OSError, match="sample 2 on fire"):
        next(items)
    assert list(items) == []


def test_an_error_of_the_items_themselves_comes_in_order():
    def broken():
        yield from range(4)
        raise OSError("no list")

    items = prefetched(broken, 4, 2, lambda item: item)
    assert list(itertools.islice(items, 4)) == [0, 1, 2, 3]
    with pytest.raises(OSError, match="no list"):
        next(items)


def test_no_more_than_depth_are_prepared_ahead():
    begun: list[int] = []
    full = threading.Event()

    def prepare(item):
        begun.append(item)
        if len(begun) == 5:
            full.set()
        return item

    items = prefetched(itertools.count(), 4, 2, prepare)
    assert next(items) == 0
    assert full.wait(20)
    for thread in threads():  # blocked for want of a place: the joins run into their limit
        thread.join(0.1)
    assert sorted(begun) == [0, 1, 2, 3, 4]
    items.close()


def test_closing_ends_all_loaders_and_closes_the_items():
    closed = threading.Event()

    def source():
        try:
            yield from itertools.count()
        finally:
            closed.set()

    held = source()  # else it would be closed for want of a holder
    items = prefetched(held, 8, 4, lambda item: item)
    assert next(items) == 0
    assert len(threads()) == 4
    items.close()
    assert threads() == []
    assert closed.is_set()


@pytest.mark.parametrize(
    ("depth", "loaders", "text"),
    [(2, 3, "3 loaders, and prefetch is 2"), (0, 2, "prefetch is 0"), (1, 0, "loaders is 0")],
)
def test_loaders_that_could_do_nothing_are_refused(depth, loaders, text):
    with pytest.raises(ConfigError, match=text):
        prefetched([], depth, loaders)


BATCH, STEPS, DECODE_S = 4, 12, 0.001


class Decoder:
    """Samples that take a moment, and a count of those that were taken."""

    def __init__(self):
        self.taken, self._changed = 0, threading.Condition()

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, number):
        time.sleep(DECODE_S)
        with self._changed:
            self.taken += 1
            self._changed.notify_all()
        return np.full(2, number, np.float32), np.float32(0)

    def wait_for(self, taken):
        """Whether so many were taken, now or soon."""
        with self._changed:
            return self._changed.wait_for(lambda: self.taken >= taken, 30)


def still_replica(in_step=lambda: None):
    def loss_and_gradients(arrays, batch):
        in_step()
        return 1.0, {"weights": np.zeros(2, np.float32)}

    return NumpyReplica({"weights": np.ones(2, np.float32)}, loss_and_gradients)


def train(tmp_path, decoder, in_step, **data):
    """Seconds spent on data, of a run that does something in each of its steps."""
    trainer = Trainer(
        lambda: still_replica(in_step), decoder, epochs=1, progress="off", world=SoloWorld(),
        data={"batch_size": BATCH, **data}, run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    return trainer.fit().summary["time"]["data"]


def test_the_next_batch_is_decoded_during_a_step(tmp_path):
    """A step ends only when the next batch is there."""
    decoder, steps = Decoder(), count(1)

    def in_step():
        assert decoder.wait_for(min(next(steps) + 1, STEPS) * BATCH)

    train(tmp_path, decoder, in_step)
    assert next(steps) == STEPS + 1


def test_without_prefetching_every_step_waits_for_its_batch(tmp_path):
    decoder, taken = Decoder(), []
    seconds = train(tmp_path, decoder, lambda: taken.append(decoder.taken), prefetch=0)
    assert taken == [BATCH * step for step in range(1, STEPS + 1)]
    assert seconds >= STEPS * BATCH * DECODE_S


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"train": lambda: iter([1, 2]), "loaders": 2}, "a stream is read by one thread"),
        ({"train": Decoder(), "loaders": 4, "prefetch": 2}, "4 loaders, and prefetch is 2"),
        ({"train": Decoder(), "cache_limit": "1GB"}, "read with data.cache_dir only"),
        ({"train": Decoder(), "cache_dir": "x"}, "data.cache_dir is for files"),
        ({"train": Decoder(), "cache_limit": "lots"}, 'a size as "10GB"'),
    ],
)
def test_settings_that_nothing_could_heed_are_refused(tmp_path, data, text):
    with pytest.raises(ConfigError, match=text):
        Trainer(
            still_replica, epochs=1, world=SoloWorld(), data=data, run_dir=str(tmp_path / "run")
        ).fit()
