"""TimeSplit, EpochRecord and History."""

import json
import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import DataError, OutputError
from paceline.observe import EpochRecord, History, TimeSplit

RECORD = EpochRecord(
    epoch=1,
    samples=10_000,
    seconds=2.5,
    train_loss=0.25,
    val_loss=0.125,
    val_accuracy=0.97,
    learning_rate=0.01,
    samples_per_s=4000.0,
    time=TimeSplit(compute=2.0, wait=0.25, communication=0.125, data=0.125),
)
seconds = st.floats(min_value=0, max_value=1e9)
splits = st.builds(TimeSplit, seconds, seconds, seconds, seconds)
maybe = st.none() | st.floats()
records = st.builds(
    EpochRecord,
    epoch=st.integers(1),
    samples=st.integers(0),
    seconds=st.floats(),
    train_loss=maybe,
    val_loss=maybe,
    val_accuracy=maybe,
    learning_rate=maybe,
    samples_per_s=st.floats(),
    time=st.builds(TimeSplit, st.floats(), st.floats(), st.floats(), st.floats()),
)


def test_shares_are_fractions_of_the_sum():
    assert RECORD.time.shares() == {
        "compute": 0.8,
        "wait": 0.1,
        "communication": 0.05,
        "data": 0.05,
    }


@given(splits)
def test_shares_sum_to_one_or_are_all_zero(split):
    shares = split.shares()
    assert list(shares) == ["compute", "wait", "communication", "data"]
    expected = 1.0 if split.total > 1e-300 else sum(shares.values())
    assert sum(shares.values()) == pytest.approx(expected)
    assert all(0 <= share <= 1 for share in shares.values())


def test_no_time_has_zero_shares():
    assert set(TimeSplit().shares().values()) == {0.0}


def test_splits_add_by_bucket():
    total = sum([TimeSplit(1, 2, 3, 4), TimeSplit(10, 20, 30, 40)], start=TimeSplit())
    assert total == TimeSplit(11, 22, 33, 44)
    with pytest.raises(TypeError):
        TimeSplit() + 1


def test_a_saved_history_loads_equal(tmp_path):
    history = History([RECORD, replace(RECORD, epoch=2, val_loss=None)])
    history.save(tmp_path / "history.jsonl")
    loaded = History.load(tmp_path / "history.jsonl")
    assert loaded == history
    assert isinstance(loaded, History)
    assert isinstance(loaded[0].time, TimeSplit)
    assert [path.name for path in tmp_path.iterdir()] == ["history.jsonl"]


@given(st.lists(records, max_size=3, unique_by=lambda record: record.epoch))
def test_any_history_is_strict_json_and_loads(tmp_path_factory, items):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    path = tmp_path_factory.mktemp("history") / "history.jsonl"
    history = History(items)
    history.save(path)
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    loaded = History.load(path)
    # Numbers that are not finite come back as "unknown", all others unchanged.
    before = path.read_text()
    loaded.save(path)
    assert path.read_text() == before
    for record in loaded:
        assert isinstance(record.seconds, float)
        assert isinstance(record.time.wait, float)


def test_a_loss_that_was_nan_loads_as_unknown(tmp_path):
    record = replace(RECORD, train_loss=math.nan, samples_per_s=math.inf)
    History([record]).save(tmp_path / "history.jsonl")
    (loaded,) = History.load(tmp_path / "history.jsonl")
    assert loaded.train_loss is None
    assert math.isnan(loaded.samples_per_s)


def test_saving_again_replaces_the_file(tmp_path):
    path = tmp_path / "history.jsonl"
    History([RECORD]).save(path)
    History([RECORD, replace(RECORD, epoch=2)]).save(path)
    assert len(History.load(path)) == 2


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "history.jsonl"
    path.mkdir()
    with pytest.raises(OutputError, match=r"history\.jsonl cannot be written: "):
        History([RECORD]).save(path)
    assert [item.name for item in tmp_path.iterdir()] == ["history.jsonl"]


def test_saving_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="Not a directory"):
        History().save(tmp_path / "file" / "history.jsonl")


def test_a_missing_history_is_named(tmp_path):
    with pytest.raises(DataError, match=r"Cannot read the history .*none\.json: No such file"):
        History.load(tmp_path / "none.json")


HEAD = '{"format": 2}\n'
DAMAGED = {
    "is not JSON": HEAD + '{"epo\n',
    "has history format 99, expected 2": '{"format": 99}\n',
    "has history format None": "[]\n",
    "has history format None, expected": "",
    r"record 1 has the keys epoch, expected epoch, samples": HEAD + '{"epoch":1}\n',
    r"record 1 has the keys , expected": HEAD + "7\n",
    r"record 1, time has the keys , expected compute": HEAD
    + json.dumps({**asdict(RECORD), "time": None})
    + "\n",
}


@pytest.mark.parametrize("message", DAMAGED)
def test_a_damaged_history_is_named(tmp_path, message):
    path = tmp_path / "history.jsonl"
    path.write_text(DAMAGED[message])
    with pytest.raises(DataError, match=message):
        History.load(path)


def test_saving_again_appends_what_is_new(tmp_path):
    path = tmp_path / "history.jsonl"
    history = History([RECORD])
    history.save(path)
    kept = path.read_text() + " "  # a mark: what is there is not written anew
    path.write_text(kept + "\n")
    history.append(replace(RECORD, epoch=2))
    history.save(path)
    assert path.read_text().startswith(kept)
    assert len(path.read_text().splitlines()) == 4


def test_a_record_that_was_revised_replaces_the_one_before(tmp_path):
    path = tmp_path / "history.jsonl"
    history = History([RECORD, replace(RECORD, epoch=2, val_loss=None)])
    history.save(path)
    history[-1].val_loss = 0.25
    history.revise_last()
    history.save(path)
    assert History.load(path) == history
    assert len(path.read_text().splitlines()) == 4


def test_a_record_that_is_being_written_is_not_there_yet(tmp_path):
    path = tmp_path / "history.jsonl"
    History([RECORD]).save(path)
    with path.open("a") as file:
        file.write('{"epoch": 2, "sam')
    assert History.load(path) == [RECORD]


def test_after_a_save_that_failed_the_file_is_written_whole(tmp_path):
    path = tmp_path / "history.jsonl"
    history = History([RECORD])
    history.save(path)
    kept = tmp_path / "kept"
    path.rename(kept)
    path.mkdir()
    history.append(replace(RECORD, epoch=2))
    with pytest.raises(OutputError, match="cannot be written"):
        history.save(path)
    path.rmdir()
    kept.rename(path)
    with path.open("a") as file:
        file.write('{"half a li')  # what a full disk may have left
    history.save(path)
    assert History.load(path) == history
