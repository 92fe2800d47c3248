"""Many files as one source: right samples, each once, and an error that names the bad file."""

import logging
import pickle
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest

from paceline.data import (
    ArraySource,
    BatchGrants,
    EpochRemainder,
    Shard,
    evaluation_batches,
    granted_batches,
    open_data,
    training_batches,
)
from paceline.data.files import multi_file as joined
from paceline.data.files import open_files
from paceline.data.fingerprint import describe_arrays, sum_samples
from paceline.data.sampling.shards import epoch_order, windowed_order
from paceline.data.sampling.split import CountSplit, rest_of
from paceline.errors import DataError

LENGTHS = (7, 100, 33)
TOTAL = sum(LENGTHS)


def write(path, first, samples, inputs="features", targets="labels", **options):
    numbers = np.arange(first, first + samples)
    with h5py.File(path, "w") as file:
        pictures = (numbers[:, None] * np.ones(3)).astype(np.float32)
        file.create_dataset(inputs, data=pictures, **options)
        file.create_dataset(targets, data=numbers)
    return path


@pytest.fixture
def files(tmp_path):
    first = 0
    for number, samples in enumerate(LENGTHS):
        write(tmp_path / f"{number}.h5", first, samples, chunks=(4, 3), compression="gzip")
        first += samples
    (tmp_path / "train.list").write_text("0.h5\n1.h5\n2.h5\n")
    return tmp_path


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of two chunks, not cut through a third; so few samples make many of them."""
    monkeypatch.setattr("paceline.data.formats.hdf5.BLOCK_BYTES", 9 * (12 + 8))


def opened(folder, **options):
    return open_data(str(folder / "train.list"), part="train", **options)


def test_samples_of_all_files_by_their_number(files, small_blocks):
    source = opened(files)
    assert len(source) == TOTAL
    order = np.random.default_rng(0).permutation(TOTAL)
    batch = source.take(order)
    assert batch.targets.tolist() == order.tolist()
    assert batch.inputs.tolist() == [[n, n, n] for n in order.tolist()]
    assert batch.inputs.dtype == np.float32
    assert batch.targets.dtype == np.int64


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("buffer", [None, 20])
def test_every_sample_once_over_all_files_for_every_number_of_ranks(
    files, small_blocks, ranks, buffer
):
    source = opened(files, shuffle_buffer=buffer)
    options = {"batch_size": 6, "prefetch": 0}
    for epoch in range(2):
        seen = []
        for rank in range(ranks):
            for batch in training_batches(
                source, shard=Shard(rank, ranks), seed=3, epoch=epoch, **options
            ):
                assert batch.targets.tolist() == batch.indices.tolist()
                seen += batch.targets.tolist()
        assert sorted(seen) == list(range(TOTAL))
    validated = [
        target
        for rank in range(ranks)
        for batch in evaluation_batches(source, shard=Shard(rank, ranks), **options)
        for target in batch.targets.tolist()
    ]
    assert validated == list(range(TOTAL))


def test_one_file_serves_four_workers(tmp_path):
    source = open_data(str(write(tmp_path / "one.hdf5", 0, 30)), part="train")
    parts = [
        [
            target
            for batch in training_batches(source, shard=Shard(rank, 4), batch_size=3)
            for target in batch.targets.tolist()
        ]
        for rank in range(4)
    ]
    assert sorted(n for part in parts for n in part) == list(range(30))
    assert all(parts)


def test_a_run_that_goes_on_with_other_ranks_gets_what_is_left(files, small_blocks):
    source = opened(files, shuffle_buffer=20)
    options = {"batch_size": 5, "seed": 2, "epoch": 1, "prefetch": 0}
    seen = []
    for rank in range(2):
        batches = training_batches(source, shard=Shard(rank, 2), **options)
        seen += [n for _ in range(3) for n in next(batches).indices.tolist()]
    rest = EpochRemainder(3, 5, rest_of(CountSplit(EpochRemainder(2, 5), TOTAL), [3, 3]))
    for rank in range(3):
        for batch in training_batches(source, shard=Shard(rank, 3), remainder=rest, **options):
            seen += batch.indices.tolist()
    assert sorted(seen) == list(range(TOTAL))


def test_asynchronous_workers_take_the_same_order(files, small_blocks):
    source = opened(files, shuffle_buffer=20)
    grants = BatchGrants()
    grants.grant(0, 14)
    grants.end()
    found = [
        n
        for batch in granted_batches(source, grants, batch_size=10, seed=4, prefetch=0)
        for n in batch.indices.tolist()
    ]
    assert found == source.order(4, 0).tolist()


def test_windows_read_every_block_once(files, small_blocks, monkeypatch):
    source = opened(files, shuffle_buffer=20)
    read = []
    real = joined.MultiFileSource._read_rows
    monkeypatch.setattr(
        joined.MultiFileSource,
        "_read_rows",
        lambda self, block, rows: read.append((block.path, block.first)) or real(self, block, rows),
    )
    for _ in training_batches(source, shard=Shard(0, 1), batch_size=4, seed=1, prefetch=0):
        assert source._cache.held_bytes <= source._cache.limit_bytes
    assert len(set(read)) == len(source._blocks) == 1 + 13 + 5
    # Batches that lie across two windows may ask for a block of the first one again.
    assert len(read) <= len(source._blocks) + 3
    assert source._cache.limit_bytes <= (20 + 8 + 8) * source.sample_bytes


def test_windowed_order():
    edges = np.array([0, 5, 10, 13, 20, 27, 30])
    order = windowed_order(edges, 10, seed=1, epoch=0)
    assert sorted(order.tolist()) == list(range(30))
    assert order.tolist() == windowed_order(edges, 10, seed=1, epoch=0).tolist()
    others = [windowed_order(edges, 10, 1, 1), windowed_order(edges, 10, 2, 0)]
    assert all(order.tolist() != other.tolist() for other in others)
    # The first ten come from whole blocks, of which there may be one more than needed.
    blocks = np.searchsorted(edges, order, side="right") - 1
    assert len(set(blocks[:10].tolist())) <= 3
    begins = {int(edges[edges <= windowed_order(edges, 5, 1, epoch)[0]][-1]) for epoch in range(9)}
    assert len(begins) > 3
    assert order.tolist() != sorted(order.tolist())
    assert windowed_order(edges, 1000, 1, 0).tolist() != order.tolist()


def test_the_order_depends_on_the_buffer_and_says_so(files, small_blocks):
    one, other, whole = (opened(files, shuffle_buffer=n) for n in (20, 40, TOTAL))
    assert one.order_facts.startswith("windows of 20 samples in 19 blocks")
    assert one.order_facts != other.order_facts
    assert whole.order_facts is None
    assert whole.order(5, 2).tolist() == epoch_order(TOTAL, 5, 2).tolist()
    assert opened(files).order_facts is None  # all of it fits in 64 MB


def test_an_empty_file_is_told_and_the_others_are_used(files, caplog):
    with h5py.File(files / "1.h5", "w") as file:
        file.create_dataset("features", (0, 3), np.float32)
        file.create_dataset("labels", (0,), np.int64)
    with caplog.at_level(logging.WARNING):
        source = opened(files)
    assert len(source) == 40
    assert "1.h5 holds no samples" in caplog.text
    (files / "train.list").write_text("1.h5\n")
    with pytest.raises(DataError, match=r"train\.list holds no samples"):
        opened(files)


def test_a_file_that_disappears_is_named(files, monkeypatch):
    monkeypatch.setattr(open_files, "MOST_OPEN", 1)
    source = opened(files)
    (files / "1.h5").unlink()
    assert source.take(np.array([0])).targets.tolist() == [0]
    with pytest.raises(DataError, match=r"1\.h5 is gone"):
        source.take(np.array([0, 50]))
    with pytest.raises(DataError, match=r"train\.list, line 2: there is no file 1\.h5"):
        opened(files)


def test_a_file_that_is_replaced_is_named(files, monkeypatch):
    monkeypatch.setattr(open_files, "MOST_OPEN", 1)
    source = opened(files)
    write(files / "1.h5", 7, 100)
    with pytest.raises(DataError, match=r"1\.h5 changed while it was trained on"):
        source.take(np.array([50]))


@pytest.mark.parametrize("keep", [10, 0.3, 0.95])
def test_a_truncated_file_is_named(files, keep):
    whole = (files / "1.h5").read_bytes()
    (files / "1.h5").write_bytes(whole[: int(keep if keep > 1 else len(whole) * keep)])
    with pytest.raises(DataError, match=r"1\.h5 .*truncated or damaged.*write it again") as caught:
        opened(files)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_cut_while_it_is_read_is_named(files, small_blocks):
    source = opened(files)
    source.take(np.array([8]))
    with (files / "1.h5").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(DataError, match=r"1\.h5 changed while it was trained on"):
        source.take(np.array([100]))


def test_files_with_other_names_shapes_or_types_are_named(files):
    write(files / "1.h5", 7, 100, inputs="X", targets="Y")
    with pytest.raises(DataError, match=r"1\.h5 has no dataset features or labels; it has: X, Y"):
        opened(files)
    with h5py.File(files / "1.h5", "w") as file:
        file["features"], file["labels"] = np.zeros((5, 4), np.float32), np.arange(5)
    with pytest.raises(DataError, match=r"1\.h5 has features float32 \(4,\).*0\.h5 has .*\(3,\)"):
        opened(files)
    with h5py.File(files / "1.h5", "w") as file:
        file["features"], file["labels"] = np.zeros((5, 3), np.float64), np.arange(5)
    with pytest.raises(DataError, match=r"1\.h5 has features float64"):
        opened(files)
    with h5py.File(files / "1.h5", "w") as file:
        file["features"], file["labels"] = np.zeros((5, 3), np.float32), np.arange(6)
    with pytest.raises(DataError, match=r"1\.h5 differ .*: features 5, labels 6"):
        opened(files)


def test_few_files_are_open_at_a_time(tmp_path):
    for number in range(50):
        write(tmp_path / f"{number:03}.h5", number, 1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    source = open_data(str(tmp_path / "*.h5"), part="train")
    assert source.take(np.arange(50)).targets.tolist() == list(range(50))
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 2 * open_files.MOST_OPEN
    assert len(source._files._opened) == open_files.MOST_OPEN


def test_threads_and_other_processes_read_the_same(files, small_blocks, monkeypatch):
    monkeypatch.setattr(open_files, "MOST_OPEN", 1)
    source = opened(files, shuffle_buffer=8)
    orders = [np.random.default_rng(seed).permutation(TOTAL) for seed in range(4)]
    found: dict[int, list[int]] = {}

    def read(number):
        found[number] = source.take(orders[number]).targets.tolist()

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: order.tolist() for number, order in enumerate(orders)}
    sent = pickle.loads(pickle.dumps(source))
    assert sent.take(np.array([139, 0])).targets.tolist() == [139, 0]
    assert sent.order_facts == source.order_facts


def test_ranks_compare_what_they_see(files):
    one, same = opened(files), opened(files)
    assert describe_arrays(one) == "float32 (3,), int64 ()"
    assert sum_samples(one) == sum_samples(same)
    assert isinstance(sum_samples(one), int)
    write(files / "new.h5", 0, 33).replace(files / "2.h5")
    assert sum_samples(opened(files)) != sum_samples(one)


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_lists_of_numpy_files(tmp_path, suffix):
    lines = []
    for number, samples in enumerate((5, 0, 8)):
        x, y = np.full((samples, 2), number), np.arange(samples)
        if suffix == "npz":
            np.savez(tmp_path / f"{number}.npz", x=x, y=y)
            lines.append(f"{number}.npz")
        else:
            np.save(tmp_path / f"x{number}.npy", x)
            np.save(tmp_path / f"y{number}.npy", y)
            lines.append(f"x{number}.npy, y{number}.npy")
    (tmp_path / "l.txt").write_text("\n".join(lines))
    source = open_data(str(tmp_path / "l.txt"), part="train")
    assert not isinstance(source, ArraySource)
    batch = source.take(np.array([12, 4, 5]))
    assert batch.targets.tolist() == [7, 4, 0]
    assert batch.inputs.tolist() == [[2, 2], [0, 0], [2, 2]]
