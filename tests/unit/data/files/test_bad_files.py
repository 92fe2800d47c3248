"""Files that are damaged, strange or changed: our own error or the data, and nothing else."""

import gzip
import hashlib
import io
import logging
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paceline.data import ArraySource, Shard, open_data, training_batches
from paceline.data.builtin import mnist
from paceline.data.files import file_guard as watch
from paceline.data.fingerprint import describe_arrays, sum_samples
from paceline.data.formats import numpy_files as npy
from paceline.errors import DataError, PacelineError

X, Y = np.arange(60, dtype=np.float32).reshape(30, 2), np.arange(30)


def bytes_of(save, *arrays, **named):
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


NPY = bytes_of(np.save, X)
NPZ = bytes_of(np.savez, x=X, y=Y)
PACKED = bytes_of(np.savez_compressed, x=X, y=Y)
IDX = struct.pack(">2I", 0x801, 5) + bytes(range(5))


def npy_claiming(descr, shape, content=b""):
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + content


def npz_of(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def refusal(path, content=None):
    """What is said of the file; it always names it, on one line."""
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        open_data(str(path), part="train")
    message = str(caught.value)
    assert path.name in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("name", "whole"), [("d.npy", NPY), ("d.npz", NPZ), ("p.npz", PACKED)])
def test_a_file_cut_at_any_place_is_refused(tmp_path, name, whole):
    for length in range(len(whole)):
        message = refusal(tmp_path / name, whole[:length])
        assert any(word in message for word in ("truncated", "is empty", "is not a .np")), message


def test_a_header_tells_what_it_claims_and_what_there_is(tmp_path):
    message = refusal(tmp_path / "d.npy", NPY[:-8])
    assert "claims float32 of shape (30, 2), 240 bytes, and 232 follow" in message
    assert "write it again with np.save" in message


@pytest.mark.parametrize("shape", [(10**15,), (10**15, 10**15), (2**62, 4), (-1,), (-2, -3)])
def test_a_claim_that_no_memory_could_hold_is_refused_at_once(tmp_path, shape):
    huge = npy_claiming("<f8", shape, bytes(64))
    assert "header claims float64" in refusal(tmp_path / "d.npy", huge)
    assert "x in " in refusal(tmp_path / "d.npz", npz_of(x=huge, y=NPY))


def test_an_archive_larger_than_the_memory_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(npy, "_memory_bytes", lambda: 600)
    message = refusal(tmp_path / "d.npz", NPZ)
    assert "unpacks to 736 bytes, and this machine has 600 bytes" in message
    assert "X.npy" in message


@pytest.mark.parametrize(
    ("descr", "shape", "said"),
    [
        ("<f4", (0, 3), "holds no samples: its shape is (0, 3)"),
        ("<f4", (10**15, 0), "has samples of size 0"),
        ("<U0", (10**15,), "expected numbers"),
        ("<U3", (2,), "holds values of type <U3, expected numbers"),
        ("<M8[s]", (2,), "expected numbers"),
        ([("a", "<i4")], (2,), "expected numbers"),
        ("|O", (2,), "holds Python objects"),
        ([("a", "|O")], (2,), "holds Python objects"),
    ],
)
def test_what_no_model_can_be_fed_with_is_refused(tmp_path, descr, shape, said):
    content = npy_claiming(descr, shape, bytes(100))
    assert said in refusal(tmp_path / "d.npy", content)
    assert said in refusal(tmp_path / "d.npz", npz_of(x=content, y=NPY))


def test_a_pickle_never_runs(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    trap = np.array([Trap(), Trap()], dtype=object)
    refusal(tmp_path / "d.npy", bytes_of(np.save, trap))
    refusal(tmp_path / "d.npz", bytes_of(np.savez, x=trap, y=Y[:2]))
    assert not (tmp_path / "sprung").exists()


def test_members_that_are_no_arrays_are_named(tmp_path):
    assert "x in " in refusal(tmp_path / "d.npz", npz_of(x=b"hello", y=NPY))
    assert "x in " in refusal(tmp_path / "d.npz", npz_of(x=NPY + b"more", y=NPY))
    assert "no array x or y; it has: a, b" in refusal(tmp_path / "d.npz", npz_of(a=NPY, b=NPY))
    assert "no array x or y; it has: none" in refusal(tmp_path / "d.npz", npz_of())


def test_a_single_number_and_pairs_of_unequal_length_are_named(tmp_path):
    assert "single number" in refusal(tmp_path / "d.npy", bytes_of(np.save, np.float32(3)))
    pair = bytes_of(np.savez, x=X, y=Y[:7])
    assert "arrays of 30 and of 7 samples" in refusal(tmp_path / "d.npz", pair)


def test_strange_paths_are_refused_without_reading(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")  # reading it would wait for ever
    assert "is a pipe or device" in refusal(tmp_path / "pipe.npy")
    (tmp_path / "file").write_bytes(b"x")
    assert "there is no file" in refusal(tmp_path / "file" / "below.npy")
    (tmp_path / "loop.npy").symlink_to(tmp_path / "loop.npy")
    assert "cannot be opened" in refusal(tmp_path / "loop.npy")
    for name in ("a" * 5000 + ".npy", "~nobody_of_that_name/x.npy", "nul\0.npz"):
        with pytest.raises(DataError):
            open_data(name, part="train")
    with pytest.raises(DataError, match="is not a data set"):
        open_data("a" * 5000, part="train")


def test_a_missing_file_is_named_even_where_the_directory_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(DataError, match=r"there is no file x\.npy.*directory is gone"):
        open_data("x.npy", part="train")


@pytest.mark.parametrize("name", ["d.npy", "d.npz"])
def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch, name):
    def forbidden(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(watch.os, "open", forbidden)  # root may read everything
    message = refusal(tmp_path / name, NPY if name == "d.npy" else NPZ)
    assert "may not be read by this user; change its permissions" in message


def test_the_other_byte_order_is_turned_round(tmp_path):
    np.save(tmp_path / "d.npy", X.astype(">f4"))
    batch = open_data(str(tmp_path / "d.npy"), part="train").take(np.array([3, 0]))
    assert batch.inputs.dtype.isnative
    assert batch.inputs.tolist() == [[6, 7], [0, 1]]


def mutated(whole):
    """The file with some bytes changed, removed, or put in; or anything at all."""
    place = st.integers(0, len(whole))
    edits = st.lists(st.tuples(place, place, st.binary(max_size=8)), min_size=1, max_size=4)

    def apply(edits):
        content = whole
        for first, last, fresh in edits:
            kept = last if last - first in range(12) else first + len(fresh)
            content = content[:first] + fresh + content[kept:]
        return content

    return edits.map(apply) | st.binary(max_size=300).map(lambda tail: whole[:6] + tail)


fuzzed = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def open_or_refuse(path, content):
    path.unlink(missing_ok=True)  # earlier ones are still mapped
    path.write_bytes(content)
    said = path.name
    try:
        source = open_data(str(path), part="train")
        assert len(source.take(np.array([0, len(source) - 1])).inputs) == 2
    except PacelineError as error:
        said = str(error)
    assert path.name in said


@fuzzed
@given(content=mutated(NPY))
def test_any_npy_opens_or_is_refused(tmp_path, content):
    open_or_refuse(tmp_path / "d.npy", content)


@fuzzed
@given(content=mutated(NPZ) | mutated(PACKED))
@example(content=NPZ.replace(b"'<f4'", b"'<f8'"))
def test_any_npz_opens_or_is_refused(tmp_path, content):
    open_or_refuse(tmp_path / "d.npz", content)


@fuzzed
@given(header=st.text("{}[]()'\",:<fi48descrOtushap_ \n\\0-9", max_size=60) | st.text(max_size=40))
def test_any_header_opens_or_is_refused(tmp_path, header):
    head = header.encode(errors="surrogatepass")
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(64)
    open_or_refuse(tmp_path / "d.npy", content)


@fuzzed
@given(content=mutated(IDX) | mutated(gzip.compress(IDX)), known=st.booleans())
def test_any_idx_is_read_or_refused(tmp_path, content, known):
    stem = "train-labels-idx1-ubyte"
    path = tmp_path / stem
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        if known and not content.startswith(mnist.GZIP_MAGIC):  # else nothing gets to the header
            patch.setitem(mnist.MD5, stem, hashlib.md5(content).hexdigest())
        said = str(path)
        try:
            labels = mnist._read(tmp_path, stem, mnist.LABELS_MAGIC, ())
            assert labels.tolist() in (list(range(5)), list(content[8:]))
        except DataError as error:
            said = str(error)
        assert str(path) in said


def test_a_packed_idx_that_never_ends_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "MOST_BYTES", 1000)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(bytes(10**6)))
    with pytest.raises(DataError, match=r"ubyte\.gz is damaged: it has more than 1000 bytes"):
        mnist._read(tmp_path, "train-labels-idx1-ubyte", mnist.LABELS_MAGIC, ())


def test_a_directory_of_mnist_that_may_not_be_entered_is_not_taken_for_empty(tmp_path, monkeypatch):
    def forbidden(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", forbidden)
    with pytest.raises(DataError, match=r"cannot look for .*Permission denied"):
        mnist.locate(tmp_path)


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3000, 8)))
    return tmp_path / "x.npy", open_data(str(tmp_path / "x.npy"), part="train")


def test_a_mapped_file_that_is_cut_is_an_error_and_no_sigbus(mapped):
    path, source = mapped
    source.take(np.array([2999]))
    os.truncate(path, 4096)
    with pytest.raises(DataError, match=r"x\.npy changed .*192128 bytes of .*, now 4096 bytes"):
        source.take(np.array([2999]))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_training_notices_that_a_file_was_written_to(mapped, prefetch):
    path, source = mapped
    batches = training_batches(source, shard=Shard(0, 1), batch_size=100, prefetch=prefetch)
    next(batches)
    with path.open("r+b") as file:
        file.seek(128)
        file.write(b"\1" * 8)
    os.utime(path, ns=(1, 1))  # the clock of files ticks only every few milliseconds
    with pytest.raises(DataError, match=r"x\.npy changed while it was trained on"):
        list(batches)


def test_what_is_written_during_a_gather_is_noticed_after_it(tmp_path):
    np.save(tmp_path / "x.npy", X)
    array, file = npy.map_npy(str(tmp_path / "x.npy"))

    def meanwhile(inputs):
        with (tmp_path / "x.npy").open("ab") as more:
            more.write(b"more")
        return inputs

    source = ArraySource(array, transform=meanwhile, files=(file,))
    with pytest.raises(DataError, match="changed while"):
        source.take(np.array([0]))


def test_a_touch_is_told_and_allowed(mapped, caplog):
    path, source = mapped
    os.utime(path, ns=(1, 1))
    with caplog.at_level(logging.WARNING, logger="paceline"):
        source.take(np.array([0]))
        source.take(np.array([1]))
    assert len(caplog.records) == 1
    assert "x.npy changed" in caplog.text
    assert "the same content where checked" in caplog.text


def test_a_file_that_is_replaced_or_removed_goes_on_as_it_was(mapped, tmp_path):
    path, source = mapped
    np.save(tmp_path / "other.npy", np.ones((3, 8)))
    (tmp_path / "other.npy").replace(path)
    assert source.take(np.array([2999])).inputs.tolist() == [[0.0] * 8]
    path.unlink()
    assert source.take(np.array([0])).inputs.tolist() == [[0.0] * 8]


def test_an_archive_in_memory_outlives_its_file_with_a_warning(tmp_path, caplog):
    path = tmp_path / "d.npz"
    path.write_bytes(NPZ)
    source = open_data(str(path), part="train")
    path.write_bytes(b"new")
    with caplog.at_level(logging.WARNING, logger="paceline"):
        assert source.take(np.array([29])).targets.tolist() == [29]
        source.take(np.array([0]))
    assert len(caplog.records) == 1
    assert "d.npz changed" in caplog.text
    assert "continues with what it read at its start" in caplog.text


def is_open(path):
    """Whether this process has the file open; others of its files come and go."""
    return any(os.path.realpath(entry) == str(path) for entry in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_no_file_stays_open_behind_a_source_that_is_gone(tmp_path):
    (tmp_path / "d.npy").write_bytes(NPY)
    source = open_data(str(tmp_path / "d.npy"), part="train")
    assert is_open(tmp_path / "d.npy")
    del source
    assert not is_open(tmp_path / "d.npy")


def test_a_read_that_fails_names_the_samples():
    class Tape:
        shape = (4,)

        def __len__(self):
            return 4

        def __getitem__(self, _):
            raise OSError("torn")

    with pytest.raises(DataError, match=r"samples 1, 2 of tape cannot be read: OSError: torn"):
        ArraySource(Tape(), name="tape").take(np.array([1, 2]))


def test_fingerprints_tell_data_apart():
    source, other = ArraySource(X, Y), ArraySource(X.copy(), Y)
    assert describe_arrays(source) == "float32 (2,), int64 ()"
    assert sum_samples(source) == sum_samples(other)
    for place in (0, 29):
        changed = X.copy()
        changed[place, 1] += 1
        assert sum_samples(ArraySource(changed, Y)) != sum_samples(source)
    assert describe_arrays(ArraySource(X.astype(np.float64), Y)) != describe_arrays(source)
    assert sum_samples(ArraySource(np.array([{}, {}]))) is None  # addresses differ everywhere
    assert sum_samples([1, 2]) is None
    assert sum_samples(ArraySource(X[:1])) == sum_samples(ArraySource(X[:1].copy()))
