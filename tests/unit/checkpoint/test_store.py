"""Checkpoints are there whole or not at all, and damage is found before it is used."""

import json
import tempfile
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.checkpoint_folders import hidden
from support.trees import bits, trees

from paceline.checkpoint import store as module
from paceline.checkpoint.store import Store, newest_valid
from paceline.errors import CheckpointError, OutputError

ONE, TWO = "step-00000001", "step-00000002"


def save(store, name, parts, **facts):
    store.begin(name)
    for part, tree in parts.items():
        store.write(name, part, tree)
    store.commit(name, list(parts), facts, timeout_s=0)


def save_number(store, name, number):
    save(store, name, {"model": {"w": np.full(3, number)}}, number=number)


@settings(max_examples=60, deadline=None)
@given(trees, trees)
def test_any_tree_comes_back(tree, other):
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        save(store, ONE, {"model": tree, "rank-0": other}, step=1)
        assert store.parts(ONE) == ["model", "rank-0"]
        store.check(ONE)
        assert bits(store.read(ONE, "model")) == bits(tree)
        assert bits(store.read(ONE, "rank-0")) == bits(other)


def test_arrays_are_the_readers_own(tmp_path):
    store = Store(tmp_path)
    written = np.arange(12.0).reshape(3, 4).T[::2]
    save(store, ONE, {"model": {"w": written}})
    first = store.read(ONE, "model")["w"]
    first[:] = -1
    assert store.read(ONE, "model")["w"].tolist() == written.tolist()
    store.check(ONE)


def test_other_byte_orders_keep_their_numbers(tmp_path):
    store = Store(tmp_path)
    save(store, ONE, {"model": {"w": np.array([1.5, -2.0], dtype=">f4")}})
    assert store.read(ONE, "model")["w"].tolist() == [1.5, -2.0]


def test_files_are_what_they_are_called(tmp_path):
    store = Store(tmp_path / "checkpoints")
    tree = {"a": np.ones(3, bool), "b": np.arange(5.0), "c": {"d": np.array(7, np.int32)}}
    save(store, ONE, {"model": tree}, step=1, loss=float("nan"))
    place = tmp_path / "checkpoints" / ONE
    files = {path.name: path.read_bytes() for path in place.iterdir()}
    assert sorted(files) == ["checkpoint.json", "model.json", "model.safetensors"]
    manifest = json.loads(files.pop("checkpoint.json"))
    assert manifest["format"] == 2
    assert manifest["facts"] == {"step": 1, "loss": {"$float": "nan"}}
    assert manifest["files"] == {
        name: {"bytes": len(data), "crc32": f"{zlib.crc32(data):08x}"}
        for name, data in files.items()
    }
    assert json.loads(files["model.json"])["arrays"] == manifest["files"]["model.safetensors"]
    loaded = load_file(place / "model.safetensors")
    assert bits(dict(sorted(loaded.items()))) == bits(
        {"a": tree["a"], "b": tree["b"], "c/d": tree["c"]["d"]}
    )


def test_names_are_in_the_order_of_their_numbers(tmp_path):
    store = Store(tmp_path, keep=9)
    assert Store(tmp_path / "nowhere").names() == []
    for name in ("step-10", "step-9", "epoch-11", "step-100"):
        save_number(store, name, 0)
    (tmp_path / "step-12").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "step-13").write_text("a file")
    assert store.names() == ["step-9", "step-10", "epoch-11", "step-100"]


def test_only_the_newest_are_kept(tmp_path):
    store = Store(tmp_path, keep=2)
    for step in (8, 9, 10):
        save_number(store, f"step-{step}", step)
    assert store.names() == ["step-9", "step-10"]
    assert store.facts("step-9") == {"number": 9}
    assert hidden(store) == []


def test_a_run_that_went_back_keeps_what_it_writes_now(tmp_path):
    store = Store(tmp_path, keep=1)
    save_number(store, "step-20", 20)
    save_number(store, "step-10", 10)
    save_number(store, "step-15", 15)
    assert store.names() == ["step-15", "step-20"]
    save_number(store, "step-20", 21)
    assert store.names() == ["step-20"]
    assert store.facts("step-20") == {"number": 21}


def test_a_draft_is_no_checkpoint(tmp_path):
    store = Store(tmp_path)
    store.begin(ONE)
    store.write(ONE, "model", {"w": np.zeros(2)})
    assert store.names() == []
    with pytest.raises(CheckpointError, match=f"no checkpoint '{ONE}' in .*there are: none"):
        store.read(ONE, "model")
    store.discard(ONE)
    store.discard(ONE)
    assert list(tmp_path.iterdir()) == []


def test_begin_removes_what_others_left(tmp_path):
    store = Store(tmp_path)
    save_number(store, ONE, 1)
    for name in (".draft-step-7", ".gone-abc", f".old-{ONE}"):
        (tmp_path / name / "deep").mkdir(parents=True)
    store.begin(TWO)
    store.begin(TWO)
    assert hidden(store) == [f".draft-{TWO}"]
    assert store.names() == [ONE]


def test_commit_waits_for_the_parts_of_all_threads(tmp_path):
    store = Store(tmp_path)
    names = [f"rank-{rank}" for rank in range(4)]
    store.begin(ONE)

    def write(rank):
        time.sleep(0.02 * rank)
        Store(tmp_path).write(ONE, names[rank], {"w": np.full(100_000, rank)})

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    store.commit(ONE, names, {}, timeout_s=60)
    for thread in threads:
        thread.join()
    assert store.parts(ONE) == names
    assert [int(store.read(ONE, name)["w"].sum()) for name in names] == [
        0,
        10**5,
        2 * 10**5,
        3 * 10**5,
    ]


def test_a_part_that_never_comes_is_named(tmp_path):
    store = Store(tmp_path)
    save_number(store, ONE, 1)
    store.begin(TWO)
    store.write(TWO, "rank-0", {})
    with pytest.raises(OutputError, match=r"after 0.02 s 1 of 2 parts are missing \(rank-1\)"):
        store.commit(TWO, ["rank-0", "rank-1"], {}, timeout_s=0.02)
    assert store.names() == [ONE]
    assert hidden(store) == []


def test_a_rank_that_gives_up_ends_the_waiting_of_the_other(tmp_path):
    store = Store(tmp_path)
    store.begin(ONE)
    timer = threading.Timer(0.05, store.discard, [ONE])
    timer.start()
    began = time.monotonic()
    with pytest.raises(OutputError, match="one of which may have given it up"):
        store.commit(ONE, ["model"], {}, timeout_s=100)
    assert time.monotonic() - began < 60
    timer.join()


def test_a_part_that_lost_bytes_is_not_committed(tmp_path):
    store = Store(tmp_path)
    store.begin(ONE)
    store.write(ONE, "model", {"w": np.zeros(100)})
    path = tmp_path / f".draft-{ONE}" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(OutputError, match=r"model\.safetensors has \d+ bytes, expected \d+"):
        store.commit(ONE, ["model"], {})
    assert list(tmp_path.iterdir()) == []


def test_a_part_may_be_written_again(tmp_path):
    store = Store(tmp_path)
    store.begin(ONE)
    store.write(ONE, "model", {"w": np.zeros(100)})
    store.write(ONE, "model", {"w": np.ones(3)})
    store.commit(ONE, ["model"], {})
    assert store.read(ONE, "model")["w"].tolist() == [1, 1, 1]


def test_a_part_that_is_being_written_again_is_not_there(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt("killed")

    store = Store(tmp_path)
    store.begin(ONE)
    store.write(ONE, "model", {"w": np.zeros(100)})
    monkeypatch.setattr(module, "write_file", stop)
    with pytest.raises(KeyboardInterrupt, match="killed"):
        store.write(ONE, "model", {"w": np.ones(100)})
    with pytest.raises(OutputError, match=r"1 of 1 parts are missing \(model\)"):
        store.commit(ONE, ["model"], {}, timeout_s=0)


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "longdouble"])
def test_arrays_that_safetensors_does_not_know_are_refused(tmp_path, dtype):
    store = Store(tmp_path)
    store.begin(ONE)
    with pytest.raises(OutputError, match="'w' has dtype"):
        store.write(ONE, "model", {"w": np.zeros(2, dtype)})
    with pytest.raises(OutputError):  # at once: the part will not come
        store.commit(ONE, ["model"], {})
    assert list(tmp_path.iterdir()) == []


def test_names_that_leave_the_folder_are_refused(tmp_path):
    store = Store(tmp_path)
    for name in ("../step-1", "step", "/step-1", "step-1/x", ".old-step-1", "step-1\n", ""):
        with pytest.raises(AssertionError, match="not a name of a checkpoint"):
            store.begin(name)
        with pytest.raises(CheckpointError, match="there is no checkpoint"):
            store.check(name)
    store.begin(ONE)
    for part in ("../model", "checkpoint", "a.b", ".model", "", "model\n"):
        with pytest.raises(AssertionError, match="name"):
            store.write(ONE, part, {})
        with pytest.raises(AssertionError, match="name"):
            store.commit(ONE, [part], {})
    with pytest.raises(AssertionError, match="w are arrays"):
        store.commit(ONE, [], {"w": np.zeros(1)})


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "checkpoints").write_text("mine")
    store = Store(tmp_path / "checkpoints")
    with pytest.raises(
        OutputError, match="checkpoints/step-00000001 cannot be written: File exists"
    ):
        store.begin(ONE)
    with pytest.raises(CheckpointError, match="cannot be listed: Not a directory"):
        store.names()
    assert (tmp_path / "checkpoints").read_text() == "mine"


# Damage


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The files of a folder with two checkpoints, and the parts of the second."""
    parts = {
        "model": {"w": np.arange(6.0).reshape(2, 3), "b": {"c": np.ones(3, bool)}, "n": 1.5},
        "rank-0": {"state": [1, None, {"x": float("inf")}], "seed": 1 << 100, "e": {}},
    }
    store = Store(tmp_path_factory.mktemp("sound"))
    for name in (ONE, TWO):
        save(store, name, parts, step=2, loss=float("inf"))
    files = {
        f"{name}/{path.name}": path.read_bytes()
        for name in (ONE, TWO)
        for path in (store.folder / name).iterdir()
    }
    return files, parts


def lay_out(files, folder):
    for name, data in files.items():
        path = Path(folder) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return Store(Path(folder))


def ask(question, *arguments):
    """The answer, or the CheckpointError; any other error is let through."""
    try:
        return question(*arguments)
    except CheckpointError as error:
        return error


def probe(store, parts):
    """Ask everything of the second checkpoint; returns those of its parts that can be read."""
    reports = []
    newest = newest_valid(store, reports.append)
    assert newest in (store.names()[-1:] if not reports else [ONE])
    answers = {part: ask(store.read, TWO, part) for part in (*parts, "other")}
    others = [ask(question, TWO) for question in (store.facts, store.parts, store.check)]
    for answer in (*answers.values(), *others):
        assert not isinstance(answer, CheckpointError) or str(store.folder) in str(answer)
    return {part: tree for part, tree in answers.items() if not isinstance(tree, CheckpointError)}


def sign(files):
    """Make the manifest of the second checkpoint fit its files, as a forger would."""
    manifest = json.loads(files[f"{TWO}/checkpoint.json"])
    for name in manifest["files"]:
        data = files[f"{TWO}/{name}"]
        manifest["files"][name] = {"bytes": len(data), "crc32": f"{zlib.crc32(data):08x}"}
    files[f"{TWO}/checkpoint.json"] = json.dumps(manifest).encode()


FILES = ["model.json", "model.safetensors", "rank-0.json", "rank-0.safetensors"]


@st.composite
def damages(draw):
    """A function that makes other bytes of some bytes."""
    kind = draw(st.sampled_from(["replace", "cut", "insert", "junk"]))
    share = draw(st.floats(0, 1, exclude_max=True))
    some = draw(st.binary(min_size=1, max_size=9) | st.sampled_from([b"9", b"[", b'"', b"{", b","]))

    def damage(data):
        at = int(share * len(data))
        if kind == "cut":
            return data[:at]
        if kind == "junk":
            return some
        return data[:at] + some + data[at + (len(some) if kind == "replace" else 0) :]

    return damage


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(FILES), damages())
def test_damage_in_a_part_is_found(sound, file, damage):
    files, parts = sound
    path = f"{TWO}/{file}"
    damaged = damage(files[path])
    with tempfile.TemporaryDirectory() as folder:
        store = lay_out(files | {path: damaged}, folder)
        for part, tree in probe(store, parts).items():
            assert bits(tree) == bits(parts[part])
        reports = []
        if damaged == files[path]:
            store.check(TWO)
            return
        with pytest.raises(CheckpointError, match=f"{TWO} is damaged: {file} has .*, expected "):
            store.check(TWO)
        assert newest_valid(store, reports.append) == ONE
        assert len(reports) == 1
        assert TWO in reports[0]
        assert file in reports[0]
        assert reports[0].endswith(f"; {ONE} before it is used")


@settings(max_examples=300, deadline=None)
@given(damages())
def test_a_damaged_manifest_never_gives_wrong_parts(sound, damage):
    files, parts = sound
    path = f"{TWO}/checkpoint.json"
    with tempfile.TemporaryDirectory() as folder:
        store = lay_out(files | {path: damage(files[path])}, folder)
        for part, tree in probe(store, parts).items():
            assert bits(tree) == bits(parts[part])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FILES), damages())
def test_nothing_but_checkpoint_errors_comes_out_of_forged_parts(sound, file, damage):
    files, parts = dict(sound[0]), sound[1]
    files[f"{TWO}/{file}"] = damage(files[f"{TWO}/{file}"])
    sign(files)
    with tempfile.TemporaryDirectory() as folder:
        store = lay_out(files, folder)
        assert all(type(tree) is dict for tree in probe(store, parts).values())
        store.check(TWO)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([*FILES, "checkpoint.json"]), st.sampled_from(["nothing", "folder"]))
def test_a_file_that_is_gone_is_found(sound, file, instead):
    files, parts = sound
    with tempfile.TemporaryDirectory() as folder:
        store = lay_out(files, folder)
        (store.folder / TWO / file).unlink()
        if instead == "folder":
            (store.folder / TWO / file).mkdir()
        for part, tree in probe(store, parts).items():
            assert bits(tree) == bits(parts[part])
        with pytest.raises(CheckpointError, match=file):
            store.check(TWO)
        assert newest_valid(store, lambda _: None) == ONE


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        safetensors(b"{}", length=2**64 - 1),
        safetensors(b"{}", length=2**40),
        safetensors(b"[" * 50_000),
        safetensors(b'{"a":' * 50_000),
        safetensors({"w": {"dtype": "F64", "shape": [2**62], "data_offsets": [0, 2**63]}}),
        safetensors({"w": {"dtype": "F64", "shape": [2**40, 2**40], "data_offsets": [0, 0]}}),
        safetensors({"w": {"dtype": "F64", "shape": [1], "data_offsets": [8, 0]}}, bytes(8)),
        safetensors({"w": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}, bytes(8)),
        safetensors({"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}, bytes(8)),
        safetensors({"w": {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]}}, bytes(8)),
        safetensors({"other": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}, bytes(8)),
    ],
    ids=range(13),
)
def test_a_forged_safetensors_file_is_a_checkpoint_error(sound, tmp_path, data):
    files = dict(sound[0])
    files[f"{TWO}/model.safetensors"] = data
    sign(files)
    store = lay_out(files, tmp_path)
    store.check(TWO)
    with pytest.raises(CheckpointError, match="is damaged: "):
        store.read(TWO, "model")


def manifest_of(**changes):
    return json.dumps({"format": 2, "facts": {}, "files": {}} | changes).encode()


def naming(file, record=None):
    record = {"bytes": 4, "crc32": f"{zlib.crc32(b'mine'):08x}"} if record is None else record
    return manifest_of(files={file: record})


def test_checkpoints_of_another_format_are_refused(sound, tmp_path):
    old = {f"{name}/checkpoint.json": manifest_of(format=1) for name in (ONE, TWO)}
    store = lay_out(dict(sound[0]) | old, tmp_path)
    text = (
        rf"^the checkpoint \S+{TWO} has format 1, and this version of Paceline reads format 2: "
        "finish the run with the version that began it, or start a new run in another run_dir$"
    )
    for refused in (lambda: store.check(TWO), lambda: newest_valid(store, pytest.fail)):
        with pytest.raises(CheckpointError, match=text):
            refused()


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[]", "is not a manifest"),
        (b"1", "is not a manifest"),
        (b"{}", "is not a manifest"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b'{"format": NaN}', "NaN is not JSON"),
        (b'{"format": ' + b"1" * 5000 + b"}", "is not JSON"),
        (manifest_of(format=True), "is not a manifest"),
        (manifest_of(files=[]), "no files"),
        (manifest_of(facts=[]), "no facts"),
        (manifest_of(facts={"a": {"$float": "x"}}), "not one of nan"),
        (manifest_of(facts={"a": {"$array": "x"}}), "'x' is missing"),
        (naming("../outside.json"), "names '../outside.json', which is not a file"),
        (naming("../../etc/passwd"), "not a file of a checkpoint"),
        (naming("/etc/passwd"), "not a file of a checkpoint"),
        (naming("checkpoint.json"), "not a file of a checkpoint"),
        (naming("."), "not a file of a checkpoint"),
        (naming(""), "not a file of a checkpoint"),
        (naming("a\x00.json"), "not a file of a checkpoint"),
        (naming("model.json"), "without its other half"),
        (
            manifest_of(files={"a.json": {"bytes": True, "crc32": "0" * 8}, "a.safetensors": {}}),
            "length and checksum of a.json",
        ),
        (
            manifest_of(files={"a.json": {"bytes": 1, "crc32": "0" * 9}, "a.safetensors": {}}),
            "length and checksum of a.json",
        ),
        (manifest_of(files={"a.json": [], "a.safetensors": []}), "length and checksum of a.json"),
    ],
    ids=range(25),
)
def test_a_forged_manifest_is_a_checkpoint_error(sound, tmp_path, data, match):
    files, parts = sound
    (tmp_path / "outside.json").write_text("mine")
    store = lay_out(files | {f"{TWO}/checkpoint.json": data}, tmp_path)
    with pytest.raises(CheckpointError, match=f"{TWO} is damaged: .*{match}"):
        store.check(TWO)
    assert probe(store, parts) == {}
    assert newest_valid(store, lambda _: None) == ONE


entries = ["format", "facts", "files", "bytes", "crc32", "model.json", "model.safetensors", "/x"]
junk = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["0" * 8, "", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(entries), inner, max_size=4)
    ),
)


@settings(max_examples=200, deadline=None)
@given(junk, st.none() | junk, st.none() | junk)
def test_nothing_but_checkpoint_errors_comes_out_of_junk(sound, whole, files, facts):
    document = whole
    if files is not None:
        document = {"format": 2, "facts": facts if facts is not None else {}, "files": files}
    with tempfile.TemporaryDirectory() as folder:
        data = {f"{TWO}/checkpoint.json": json.dumps(document).encode()}
        store = lay_out(sound[0] | data, folder)
        assert all(type(tree) is dict for tree in probe(store, sound[1]).values())


def test_a_part_that_is_not_there_is_named(sound, tmp_path):
    store = lay_out(sound[0], tmp_path)
    with pytest.raises(CheckpointError, match="has no part 'critic'; it has model, rank-0"):
        store.read(TWO, "critic")
    with pytest.raises(CheckpointError, match=f"no checkpoint 'step-3' in .*: {ONE}, {TWO}"):
        store.facts("step-3")


def test_the_newest_sound_one_is_found_and_each_damaged_one_reported(tmp_path):
    store = Store(tmp_path, keep=3)
    reports = []
    assert newest_valid(store, reports.append) is None
    for step in (1, 2, 3):
        save_number(store, f"step-{step}", step)
    assert newest_valid(store, reports.append) == "step-3"
    assert reports == []
    (tmp_path / "step-3" / "model.json").unlink()
    (tmp_path / "step-2" / "checkpoint.json").write_text("")
    assert newest_valid(store, reports.append) == "step-1"
    assert len(reports) == 2
    assert reports[0] == (
        f"the checkpoint {tmp_path}/step-3 is damaged: model.json is missing; "
        "step-1 before it is used"
    )
    assert reports[1].startswith(f"the checkpoint {tmp_path}/step-2 is damaged: checkpoint.json ")
    (tmp_path / "step-1" / "model.safetensors").unlink()
    reports.clear()
    assert newest_valid(store, reports.append) is None
    assert len(reports) == 3
    assert all(report.endswith("; no valid one is left") for report in reports)
