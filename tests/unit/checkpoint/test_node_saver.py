"""Checkpoints in node memory: how often, how many, and what is copied to the disk."""

import time

import numpy as np
import pytest

from paceline.checkpoint.node_saver import NodeSaver, copy_newest, has_room
from paceline.checkpoint.store import Store


def save(store: Store, number: int, value: float = 0.0) -> None:
    name = f"step-{number:08d}"
    store.begin(name)
    store.write(name, "common", {"x": np.full(3, value)})
    store.commit(name, ["common"], {"step": number})


def test_the_next_is_due_after_a_hundred_times_what_one_has_cost(tmp_path):
    saver = NodeSaver(tmp_path, pytest.fail)
    assert saver.again_s(5, run_freely=False) == 2
    saver.note_pause(0.5)
    assert saver.again_s(5, run_freely=False) == 50
    assert saver.open(7) == 7
    saver.begin_next(7, 50.0)
    saver.add(7, "common", {"x": np.zeros(3)})
    saver.commit(7, ["common"], {})
    saver._submit("step-00000007", lambda name: compute())
    assert saver.finish() is None
    assert saver.again_s(9, run_freely=False) >= 52
    saver.close()


def test_ranks_that_run_freely_wait_for_each_other_before_they_save(tmp_path):
    """At most for a step, which took 0.1 s on average."""
    saver = NodeSaver(tmp_path, pytest.fail)
    saver.begin_next(5, 2.0)
    saver._since -= 1.0
    assert saver.again_s(15, run_freely=True) >= 10
    assert saver.again_s(15, run_freely=False) == 2
    saver.close()


def compute(seconds: float = 0.02) -> None:
    """The writer takes that much of a core's time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_one_is_due_when_its_time_has_come(tmp_path):
    saver = NodeSaver(tmp_path, pytest.fail)
    assert not saver.is_due(5)
    saver.begin_next(5, 0.0)
    assert saver.is_due(5)
    saver.close()


def test_there_is_one_at_a_time(tmp_path):
    saver = NodeSaver(tmp_path, pytest.fail)
    for number in (1, 2, 3):
        saver.open(number)
        assert saver.is_open(number)
        saver.add(number, "common", {"x": np.zeros(3)})
        saver.commit(number, ["common"], {})
        saver.finish()
        assert not saver.is_open(number)
        assert [path.name for path in tmp_path.iterdir()] == [f"step-{number:08d}"]
    saver.close()


@pytest.mark.parametrize(
    ("in_memory", "on_disk", "left", "value"),
    [
        ((20,), (10,), ["step-00000010", "step-00000020"], 1.0),
        ((20,), (), ["step-00000020"], 1.0),
        ((20,), (30,), ["step-00000030"], 2.0),
        ((20,), (20,), ["step-00000020"], 2.0),
        ((), (10,), ["step-00000010"], 2.0),
        ((), (), [], None),
    ],
)
def test_what_is_newer_in_node_memory_is_copied_to_the_disk(
    tmp_path, in_memory, on_disk, left, value
):
    memory, disk = Store(tmp_path / "memory"), Store(tmp_path / "disk")
    for number in in_memory:
        save(memory, number, 1.0)
    for number in on_disk:
        save(disk, number, 2.0)
    assert copy_newest(memory.folder, disk.folder) == bool(left)
    assert disk.names() == left
    if left:
        disk.check(left[-1])
        assert disk.read(left[-1], "common")["x"].tolist() == [value] * 3
    assert copy_newest(None, disk.folder) == bool(left)


def test_what_cannot_be_written_is_told_once_and_tried_again(tmp_path):
    said = []
    saver = NodeSaver(tmp_path / "full", said.append)
    (tmp_path / "full").touch()
    assert [saver.open(1), saver.open(2)] == [None, None]
    (tmp_path / "full").unlink()
    assert saver.open(3) == 3
    saver.close()
    assert len(said) == 1
    assert "step-00000001 cannot be written" in said[0]


def test_room_is_there_for_three(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 300})
    monkeypatch.setattr("shutil.disk_usage", lambda place: usage)
    assert has_room(tmp_path, 100)
    assert not has_room(tmp_path, 101)
