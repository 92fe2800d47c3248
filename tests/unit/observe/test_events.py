"""EventLog and read_events: every event comes back, whatever it holds and however the rank died."""

import json
import logging
import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.costs import cost_ratio

from paceline.core.files import json_safe
from paceline.errors import ConfigError, DataError
from paceline.observe import EventLog, read_events

KEYS = ["time", "rank", "node", "event", "step", "seconds", "loss", "samples", "bytes"]
OWN_NAMES = {*KEYS, "self"}
floats = st.floats()
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_a_line_holds_all_keys_in_order(tmp_path):
    before = time.time()
    with EventLog(tmp_path, rank=3, node="n07") as log:
        log.write("step", step=12, seconds=0.25, loss=1.5, samples=64, bytes=4096, lr=0.1)
    (line,) = (tmp_path / "rank-0003.jsonl").read_text().splitlines()
    event = json.loads(line)
    assert list(event) == [*KEYS, "lr"]
    assert before - 1e-3 <= event.pop("time") <= time.time() + 1e-3
    assert event == {
        "rank": 3,
        "node": "n07",
        "event": "step",
        "step": 12,
        "seconds": 0.25,
        "loss": 1.5,
        "samples": 64,
        "bytes": 4096,
        "lr": 0.1,
    }


@given(
    node=st.text(),
    event=st.text(),
    numbers=st.tuples(st.integers(), floats, st.none() | floats, st.integers(), st.integers()),
    more=st.dictionaries(st.text().filter(lambda key: key not in OWN_NAMES), json_values),
)
def test_whatever_is_written_is_read_back(tmp_path_factory, node, event, numbers, more):
    directory = tmp_path_factory.mktemp("events")
    step, seconds, loss, samples, size = numbers
    given_values = dict(step=step, seconds=seconds, loss=loss, samples=samples, bytes=size, **more)
    with EventLog(directory, rank=1, node=node) as log:
        log.write(event, **given_values)
    text = (directory / "rank-0001.jsonl").read_text()
    json.loads(text, parse_constant=refuse_constant)
    (read,) = read_events(directory)
    del read["time"]
    assert read == {"rank": 1, "node": node, "event": event, **json_safe(given_values)}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_what_is_not_finite_becomes_null(tmp_path, value):
    with EventLog(tmp_path, rank=0, node="n") as log:
        log.write("step", seconds=value, loss=value, norms=[value, 1.0])
    (event,) = read_events(tmp_path)
    assert (event["seconds"], event["loss"], event["norms"]) == (None, None, [None, 1.0])


def test_numpy_values_are_written_as_numbers(tmp_path):
    with EventLog(tmp_path, rank=0, node="n") as log:
        log.write(
            "step",
            step=np.int64(7),
            loss=np.float32(0.5),
            lr=np.float32(0.25),
            counts=np.array([1, 2]),
        )
    (event,) = read_events(tmp_path)
    assert [event[key] for key in ("step", "loss", "lr", "counts")] == [7, 0.5, 0.25, [1, 2]]


@pytest.mark.parametrize("key", ["time", "rank", "node"])
def test_a_key_of_the_log_itself_is_refused(tmp_path, key):
    with EventLog(tmp_path, rank=0, node="n") as log, pytest.raises(ValueError, match=key):
        log.write("step", **{key: 1})


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with EventLog(None, rank=0, node="n") as log:
        log.write("step")
    assert list(tmp_path.iterdir()) == []


def test_closing_twice_and_writing_afterwards_change_nothing(tmp_path):
    log = EventLog(tmp_path / "new" / "events", rank=0, node="n")
    log.write("step")
    log.close()
    log.close()
    log.write("late")
    log.flush()
    assert [event["event"] for event in read_events(tmp_path / "new" / "events")] == ["step"]


def test_events_reach_the_file_within_the_flush_interval(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with EventLog(tmp_path, rank=0, node="n") as log:
        log.write("first")
        assert read_events(tmp_path) == []
        now = 101.0
        log.write("second")
        assert [event["event"] for event in read_events(tmp_path)] == ["first", "second"]
        log.write("third")
        assert len(read_events(tmp_path)) == 2
        log.flush()
        assert len(read_events(tmp_path)) == 3


def test_events_of_all_ranks_are_sorted_by_time(tmp_path):
    logs = [EventLog(tmp_path, rank, f"n{rank}") for rank in range(3)]
    for step in range(5):
        for log in logs:
            log.write("step", step=step)
    for log in logs:
        log.close()
    events = read_events(tmp_path)
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    assert {(event["rank"], event["step"]) for event in events} == {
        (rank, step) for rank in range(3) for step in range(5)
    }


@given(cut=st.integers(min_value=1, max_value=100))
def test_a_torn_last_line_is_left_out_and_a_resumed_log_goes_on(tmp_path_factory, cut):
    directory = tmp_path_factory.mktemp("torn")
    with EventLog(directory, rank=0, node="n") as log:
        log.write("whole")
        log.write("torn")
    path = directory / "rank-0000.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert [event["event"] for event in read_events(directory)] == ["whole"]
    with EventLog(directory, rank=0, node="n") as log:
        log.write("resumed")
    assert [event["event"] for event in read_events(directory)] == ["whole", "resumed"]


@pytest.mark.parametrize("whole_lines", [0, 1, 20_000])
@pytest.mark.parametrize("torn_bytes", [0, 1, 200_000])
def test_a_torn_line_is_cut_whole_whatever_its_length(tmp_path, whole_lines, torn_bytes):
    path = tmp_path / "rank-0000.jsonl"
    whole = b'{"time": 1}\n' * whole_lines
    path.write_bytes(whole + b"x" * torn_bytes)
    EventLog(tmp_path, rank=0, node="n").close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize("line", ["{torn", "[1]", '{"event": "step"}', ""])
def test_a_damaged_line_is_named(tmp_path, line):
    (tmp_path / "rank-0000.jsonl").write_text('{"time": 1}\n' + line + '\n{"time": 2}\n')
    with pytest.raises(DataError, match=r"rank-0000\.jsonl, line 2 is"):
        read_events(tmp_path)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(DataError, match=r"No directory .*nowhere"):
        read_events(tmp_path / "nowhere")


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"Cannot write events to .*rank-0000\.jsonl: "):
        EventLog(tmp_path / "file", rank=0, node="n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(("events", "end"), [(1, "close"), (1, "flush"), (1000, "flush")])
def test_a_full_disk_warns_once_and_does_not_raise(tmp_path, caplog, monkeypatch, events, end):
    monkeypatch.setattr(logging.getLogger("paceline"), "propagate", True)
    (tmp_path / "rank-0000.jsonl").symlink_to("/dev/full")
    log = EventLog(tmp_path, rank=0, node="n")
    for step in range(events):
        log.write("step", step=step)
    getattr(log, end)()
    log.write("late")
    log.close()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "rank-0000.jsonl: No space left on device" in record.getMessage()


def test_a_step_event_costs_no_more_than_json_alone_would(tmp_path):
    figures = {"step": 12345, "seconds": 0.0123456789, "loss": 0.123456789, "samples": 64}
    event = {"time": 1731858000.123456, "rank": 0, "node": "n07", "event": "step", **figures}
    with EventLog(tmp_path, rank=0, node="n07") as log:
        ratio = cost_ratio(lambda: log.write("step", **figures), lambda: json.dumps(event))
    assert ratio < 1.5
