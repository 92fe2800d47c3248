"""Several loaders: the same batches in the same order, prepared at the same time."""

import gc
import itertools
import threading
import time
from functools import partial

import numpy as np
import pytest

from paceline import Trainer
from paceline.comm import SoloWorld
from paceline.data import Batch, Shard, evaluation_batches, prefetched, training_batches
from paceline.data.prefetch import THREAD_NAME
from paceline.errors import ConfigError
from paceline.frameworks.numpy import NumpyReplica


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
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


STEP_S, DECODE_S, BATCH = 0.016, 0.002, 4


class SlowDecoder:
    def __len__(self):
        return 45 * BATCH

    def __getitem__(self, number):
        time.sleep(DECODE_S)
        return np.full(2, number, np.float32), np.float32(0)


def slow_replica():
    def loss_and_gradients(arrays, batch):
        time.sleep(STEP_S)
        return 1.0, {"weights": np.zeros(2, np.float32)}

    return NumpyReplica({"weights": np.ones(2, np.float32)}, loss_and_gradients)


def waiting_share(tmp_path, **data):
    trainer = Trainer(
        slow_replica, SlowDecoder(), epochs=1, progress="off", world=SoloWorld(),
        data={"batch_size": BATCH, **data}, run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    split = trainer.fit().summary["time"]
    return split["data"] / sum(split.values())


def test_a_slow_decoder_hides_behind_the_steps(tmp_path):
    """Decoding a batch takes half of a step. Best of three: others use the machine, too."""
    shares = (waiting_share(tmp_path / str(attempt)) for attempt in range(3))
    assert any(share < 0.05 for share in shares)


def test_without_prefetching_every_step_waits_for_it(tmp_path):
    assert waiting_share(tmp_path, prefetch=0) > 0.2


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"train": lambda: iter([1, 2]), "loaders": 2}, "a stream is read by one thread"),
        ({"train": SlowDecoder(), "loaders": 4, "prefetch": 2}, "4 loaders, and prefetch is 2"),
        ({"train": SlowDecoder(), "cache_limit": "1GB"}, "read with data.cache_dir only"),
        ({"train": SlowDecoder(), "cache_dir": "x"}, "data.cache_dir is for files"),
        ({"train": SlowDecoder(), "cache_limit": "lots"}, 'a size as "10GB"'),
    ],
)
def test_settings_that_nothing_could_heed_are_refused(tmp_path, data, text):
    with pytest.raises(ConfigError, match=text):
        Trainer(
            slow_replica, epochs=1, world=SoloWorld(), data=data, run_dir=str(tmp_path / "run")
        ).fit()
