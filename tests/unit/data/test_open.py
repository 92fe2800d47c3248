"""Data sets named by text, and what can be wrong with them."""

import textwrap

import numpy as np
import pytest

from paceline.data import ArraySource, Shard, Stream, open_data, training_batches
from paceline.errors import ConfigError, DataError

X, Y = np.arange(12.0).reshape(6, 2), np.arange(6)


def targets(source):
    return source.take(np.arange(len(source))).targets.tolist()


@pytest.fixture
def npz(tmp_path):
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    return tmp_path / "data.npz"


@pytest.fixture
def script(tmp_path, monkeypatch, request):
    """Write a Python file under a name of its own and return `file.py`."""
    monkeypatch.setattr("sys.path", list(__import__("sys").path))

    def write(text: str) -> str:
        path = tmp_path / f"mydata_{abs(hash(request.node.nodeid))}.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def test_the_built_in_digits_open_by_name():
    assert len(open_data("digits", part="train")) == 10_000
    assert len(open_data("digits", part="validation")) == 2_000


def test_mnist_opens_from_the_directory_given(tmp_path):
    with pytest.raises(DataError, match=f"MNIST is not in {tmp_path}"):
        open_data("mnist", part="train", data_dir=str(tmp_path))


def test_npz_gives_x_and_y(npz):
    source = open_data(str(npz), part="train")
    assert source.take(np.array([5])).inputs.tolist() == [[10, 11]]
    assert targets(source) == [0, 1, 2, 3, 4, 5]


def test_npz_gives_the_arrays_that_keys_name(tmp_path):
    np.savez_compressed(tmp_path / "d.npz", pictures=X, classes=Y[::-1])
    source = open_data(str(tmp_path / "d.npz"), part="train", keys=("pictures", "classes"))
    assert targets(source) == [5, 4, 3, 2, 1, 0]
    with pytest.raises(DataError, match=r"no array x or y; it has: pictures, classes.*data\.keys"):
        open_data(str(tmp_path / "d.npz"), part="train")


def test_npy_is_memory_mapped(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    pair = open_data(f"{tmp_path}/x.npy,{tmp_path}/y.npy", part="train")
    assert isinstance(pair, ArraySource)
    assert isinstance(pair.inputs, np.memmap)
    assert targets(pair) == [0, 1, 2, 3, 4, 5]
    alone = open_data(f"{tmp_path}/x.npy", part="train")
    assert alone.take(np.array([1])).targets is None
    with pytest.raises(DataError, match="names 3 files"):
        open_data("a.npy,b.npy,c.npy", part="train")


@pytest.mark.parametrize("name", ["gone.npz", "gone.npy"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(DataError, match=f"there is no file .*{name}"):
        open_data(str(tmp_path / name), part="train")


@pytest.mark.parametrize("name", ["d.npz", "d.npy"])
def test_a_directory_and_an_empty_file_are_named(tmp_path, name):
    path = tmp_path / name
    path.mkdir()
    with pytest.raises(DataError, match=f"{name} is a directory"):
        open_data(str(path), part="train")
    path.rmdir()
    path.write_bytes(b"")
    with pytest.raises(DataError, match=f"{name} is empty"):
        open_data(str(path), part="train")


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.95])
def test_a_truncated_file_is_named(tmp_path, npz, keep):
    np.save(tmp_path / "x.npy", X)
    for path in (npz, tmp_path / "x.npy"):
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * keep)])
        with pytest.raises(DataError, match=f"{path.name} is truncated or damaged") as caught:
            open_data(str(path), part="train")
        assert "\n" not in str(caught.value)


def test_a_damaged_member_is_named(tmp_path):
    path = tmp_path / "d.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random((50, 50)), y=np.arange(50))
    content = bytearray(path.read_bytes())
    content[5000:5100] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"d\.npz is truncated or damaged"):
        open_data(str(path), part="train")


@pytest.mark.parametrize("name", ["d.npz", "d.npy"])
def test_what_is_no_array_file_is_named(tmp_path, name):
    (tmp_path / name).write_text("hello, this is text")
    with pytest.raises(DataError, match=rf"{name} is not a \.np[yz] file"):
        open_data(str(tmp_path / name), part="train")


def test_python_objects_are_not_read(tmp_path):
    ragged = np.array([[1], [2, 3]], dtype=object)
    np.savez(tmp_path / "d.npz", x=ragged, y=Y[:2])
    np.save(tmp_path / "d.npy", ragged)
    for name in ("d.npz", "d.npy"):
        with pytest.raises(DataError, match=f"{name} holds Python objects"):
            open_data(str(tmp_path / name), part="train")


def test_archives_and_arrays_under_the_wrong_ending_are_named(tmp_path, npz):
    npz.rename(tmp_path / "d.npy")
    with pytest.raises(DataError, match=r"rename it to \.npz"):
        open_data(str(tmp_path / "d.npy"), part="train")
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    with pytest.raises(DataError, match=r"rename it to \.npy"):
        open_data(str(tmp_path / "x.npz"), part="train")


def test_lengths_that_differ_and_no_samples_name_the_file(tmp_path):
    np.savez(tmp_path / "d.npz", x=X, y=Y[:4])
    with pytest.raises(DataError, match=r"d\.npz holds arrays of 6 and of 4 samples"):
        open_data(str(tmp_path / "d.npz"), part="train")
    np.savez(tmp_path / "e.npz", x=X[:0], y=Y[:0])
    with pytest.raises(DataError, match=r"e\.npz holds no samples"):
        open_data(str(tmp_path / "e.npz"), part="train")
    np.save(tmp_path / "e.npy", X[:0])
    with pytest.raises(DataError, match=r"e\.npy"):
        open_data(str(tmp_path / "e.npy"), part="train")


def test_a_function_gives_the_data_and_gets_the_part_if_it_wants_it(script):
    file = script("""
        import numpy as np
        def plain():
            return np.arange(3), np.arange(3)
        def parts(part, scale=2):
            n = {"train": 4, "validation": 2}[part]
            return [(i, i * scale) for i in range(n)]
    """)
    assert targets(open_data(f"{file}:plain", part="train")) == [0, 1, 2]
    assert targets(open_data(f"{file}:parts", part="train")) == [0, 2, 4, 6]
    assert targets(open_data(f"{file}:parts", part="validation")) == [0, 2]


@pytest.mark.parametrize("name", ["generate", "wrapped"])
def test_a_generator_function_is_called_in_every_epoch(script, name):
    file = script("""
        def generate(part):
            yield from ((i, i) for i in range(5))
        def wrapped():
            return generate("train")
    """)
    stream = open_data(f"{file}:{name}", part="train")
    assert isinstance(stream, Stream)
    for epoch in range(3):
        batches = training_batches(stream, shard=Shard(0, 1), batch_size=2, epoch=epoch)
        assert [batch.targets.tolist() for batch in batches] == [[0, 1], [2, 3], [4]]


def test_a_function_that_fails_or_needs_more_is_named(script):
    file = script("""
        def fails():
            raise OSError("no tape")
        def needs(part, path):
            pass
        def nothing():
            pass
    """)
    with pytest.raises(DataError, match=r"\.py:fails failed: OSError: no tape \(line 3\)"):
        open_data(f"{file}:fails", part="train")
    with pytest.raises(DataError, match=r"\.py:needs needs path"):
        open_data(f"{file}:needs", part="train")
    with pytest.raises(DataError, match="a NoneType is not data"):
        open_data(f"{file}:nothing", part="train")
    with pytest.raises(ConfigError, match="it has: fails, needs, nothing"):
        open_data(f"{file}:fial", part="train")


def test_a_directory_is_called_one(tmp_path):
    with pytest.raises(DataError, match=r"is a directory without images; .*/\*\.h5"):
        open_data(str(tmp_path), part="train")


@pytest.mark.parametrize("spec", ["cifar", "data.xyz", ""])
def test_an_unknown_name_lists_what_is_known(spec):
    with pytest.raises(DataError, match=r"is not a data set; give one of: digits, mnist, FILE\.h5"):
        open_data(spec, part="train")


def test_an_unknown_part_is_refused(npz):
    with pytest.raises(DataError, match="part is 'test'"):
        open_data(str(npz), part="test")
