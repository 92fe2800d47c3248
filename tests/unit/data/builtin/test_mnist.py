"""The full MNIST: where it is looked for, how it is checked, how it is fetched."""

import gzip
import hashlib
import socket
import struct
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from support.ranks import FULL_MNIST

from paceline.data import open_data
from paceline.data.builtin import mnist
from paceline.errors import DataError

COUNTS = {"train": 5, "t10k": 3}
NAMES = sorted(f"{stem}.gz" for stem in mnist.MD5)


def idx(values: np.ndarray) -> bytes:
    header = struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape)
    return header + values.tobytes()


@pytest.fixture
def contents(monkeypatch, tmp_path):
    """Four tiny files in the form of MNIST's, known by their MD5; no surroundings to be found."""
    files = {}
    for stem, count in COUNTS.items():
        images = np.arange(count * 784, dtype=np.int64).astype(np.uint8).reshape(count, 28, 28)
        files[f"{stem}-images-idx3-ubyte"] = idx(images)
        files[f"{stem}-labels-idx1-ubyte"] = idx(np.arange(count, dtype=np.uint8))
    for stem, content in files.items():
        monkeypatch.setitem(mnist.MD5, stem, hashlib.md5(content).hexdigest())
    monkeypatch.delenv("PACELINE_DATA", raising=False)
    monkeypatch.delenv("PACELINE_MNIST_URL", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return files


def fill(folder: Path, contents: dict[str, bytes], packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for stem, content in contents.items():
        if packed:
            (folder / f"{stem}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / stem).write_bytes(content)
    return folder


@pytest.fixture
def serve():
    """Serve a folder on a free port of the loopback; returns its URL and the paths asked for."""
    servers = []

    def start(folder: Path) -> tuple[str, list[str]]:
        asked: list[str] = []

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                asked.append(self.path)

        handler = partial(Handler, directory=str(folder))
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/", asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("below", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_directory_is_read_packed_or_not(tmp_path, contents, below, packed):
    folder = fill(tmp_path / "data" / below, contents, packed)
    assert mnist.locate(tmp_path / "data") == folder
    train = mnist.load("train", tmp_path / "data")
    assert len(train) == 5
    assert len(mnist.load("validation", str(tmp_path / "data"))) == 3
    assert train.inputs.reshape(-1).tolist() == [n % 256 for n in range(5 * 784)]
    batch = train.take(np.array([4, 0]))
    assert batch.inputs.shape == (2, 1, 28, 28)
    assert batch.inputs.dtype == np.float32
    assert batch.targets.tolist() == [4, 0]


def test_the_argument_comes_before_the_variable_before_the_cache(tmp_path, contents, monkeypatch):
    assert mnist.locate() is None
    cache = fill(tmp_path / "cache" / "paceline" / "mnist", contents)
    assert mnist.locate() == cache
    (tmp_path / "site").mkdir()
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "site"))
    assert mnist.locate() == cache
    site = fill(tmp_path / "site" / "mnist", contents)
    assert mnist.locate() == site
    mine = fill(tmp_path / "mine", contents)
    assert mnist.locate(mine) == mine


def test_the_cache_is_in_the_home_directory_unless_moved(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert mnist.cache_directory() == tmp_path / ".cache" / "paceline" / "mnist"


def test_a_variable_that_names_no_directory_is_refused(tmp_path, contents, monkeypatch):
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "typo"))
    with pytest.raises(DataError, match=r"PACELINE_DATA is .*typo, which is not a directory"):
        mnist.locate()


def test_a_directory_without_the_files_is_an_error_even_if_the_cache_has_them(tmp_path, contents):
    fill(tmp_path / "cache" / "paceline" / "mnist", contents)
    fill(tmp_path / "mine", contents)
    (tmp_path / "mine" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"MNIST is not in .*mine or .*train-images-idx3-ubyte\.gz"):
        mnist.load("train", tmp_path / "mine")


def test_what_is_not_there_is_never_downloaded_by_load(contents, serve, tmp_path, monkeypatch):
    url, asked = serve(fill(tmp_path / "mirror", contents))
    monkeypatch.setenv("PACELINE_MNIST_URL", url)
    with pytest.raises(DataError, match=r"PACELINE_DATA.*'digits' needs no download"):
        mnist.load("train")
    assert asked == []


@pytest.mark.parametrize("damage", ["cut", "flip", "other", "empty"])
def test_a_damaged_file_is_named(tmp_path, contents, damage):
    folder = fill(tmp_path / "data", contents)
    path = folder / "train-images-idx3-ubyte.gz"
    packed = bytearray(path.read_bytes())
    if damage == "cut":
        packed = packed[: len(packed) // 2]
    elif damage == "flip":
        packed[len(packed) // 2] ^= 0xFF
    elif damage == "other":
        packed = bytearray(gzip.compress(b"something else"))
    else:
        packed = bytearray()
    path.write_bytes(packed)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is damaged.*get it again"):
        mnist.load("train", folder)
    assert len(mnist.load("validation", folder)) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\0" * 9,
        struct.pack(">4I", 0x803, 2, 28, 28) + b"x" * 785,
        struct.pack(">4I", 0x803, 1, 28, 28) + b"x" * 785,
        struct.pack(">4I", 0x801, 1, 28, 28) + b"x" * 784,
        struct.pack(">4I", 0x803, 1, 14, 56) + b"x" * 784,
    ],
)
def test_a_header_that_does_not_fit_is_refused(tmp_path, contents, monkeypatch, wrong):
    stem = "train-images-idx3-ubyte"
    folder = fill(tmp_path / "data", {**contents, stem: wrong})
    monkeypatch.setitem(mnist.MD5, stem, hashlib.md5(wrong).hexdigest())
    with pytest.raises(DataError, match=rf"{stem}\.gz has header .* expected \(2051, "):
        mnist.load("train", folder)


def test_fetch_downloads_checks_and_leaves_nothing_else(tmp_path, contents, serve):
    url, asked = serve(fill(tmp_path / "mirror", contents))
    target = mnist.fetch(url=url.rstrip("/"))
    assert target == tmp_path / "cache" / "paceline" / "mnist"
    assert sorted(path.name for path in target.iterdir()) == NAMES
    assert sorted(asked) == [f"/{name}" for name in NAMES]
    assert len(mnist.load("train")) == 5


def test_fetch_gets_only_what_is_missing(tmp_path, contents, serve, monkeypatch):
    url, asked = serve(fill(tmp_path / "mirror", contents))
    monkeypatch.setenv("PACELINE_MNIST_URL", url)
    target = fill(tmp_path / "mine", contents)
    (target / NAMES[0]).unlink()
    assert mnist.fetch(target) == target
    assert asked == [f"/{NAMES[0]}"]
    mnist.fetch(target)
    assert len(asked) == 1


def test_a_damaged_download_is_not_kept(tmp_path, contents, serve):
    mirror = fill(tmp_path / "mirror", contents)
    (mirror / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"<html>log in</html>"))
    url, _ = serve(mirror)
    with pytest.raises(DataError, match=r"http://.*train-images-idx3-ubyte\.gz is damaged"):
        mnist.fetch(tmp_path / "mine", url)
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_mirror_without_the_files_is_named(tmp_path, contents, serve):
    (tmp_path / "mirror").mkdir()
    url, _ = serve(tmp_path / "mirror")
    with pytest.raises(DataError, match=r"cannot download http://127\.0\.0\.1.*File not found"):
        mnist.fetch(tmp_path / "mine", url)


def test_offline_says_what_to_put_where(tmp_path, contents):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
    with pytest.raises(DataError) as caught:
        mnist.fetch(url=url)
    text = str(caught.value)
    assert "\n" not in text
    cache = str(tmp_path / "cache" / "paceline" / "mnist")
    for word in (url, *NAMES, cache, "PACELINE_DATA", "PACELINE_MNIST_URL", "'digits'"):
        assert word in text


def test_a_target_that_cannot_be_made_is_named(tmp_path, contents):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot make .*file/mnist for MNIST"):
        mnist.fetch(tmp_path / "file" / "mnist", "http://127.0.0.1:9/")


@pytest.mark.parametrize("bad", ["nonsense", "ftp://127.0.0.1:9/"])
def test_a_url_that_is_none_is_named(tmp_path, contents, bad):
    with pytest.raises(DataError, match=f"cannot download {bad}"):
        mnist.fetch(tmp_path / "mine", bad)


def test_the_full_set_is_read_where_it_is_at_hand():
    if FULL_MNIST is None:
        pytest.skip("the full MNIST is not here; set PACELINE_DATA to its directory")
    directory = mnist.locate(FULL_MNIST)
    assert directory is not None
    for part, count in (("train", 60_000), ("validation", 10_000)):
        source = open_data("mnist", part=part, data_dir=str(directory))
        assert len(source) == count
        assert source.take(np.arange(3)).inputs.shape == (3, 1, 28, 28)
