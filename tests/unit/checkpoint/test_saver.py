"""What a saver says of checkpoints that cannot be written, and when."""

import shutil
import threading

from paceline.checkpoint.saver import Saver
from paceline.checkpoint.store import Store


def test_a_part_that_cannot_be_written_is_reported_at_once(tmp_path):
    said, has_said = [], threading.Event()
    saver = Saver(
        Store(tmp_path / "checkpoints"), 5, lambda text: (said.append(text), has_said.set())
    )
    saver.add(10, "rank-1", {"x": 1})  # there is no draft
    assert has_said.wait(20)
    saver.add(10, "server-1", {"x": 1})
    saver.add(15, "rank-1", {"x": 1})
    saver.close()
    assert [text.partition(" cannot")[0][-13:] for text in said] == [
        "step-00000010",
        "step-00000015",
    ]


def test_only_the_last_checkpoint_counts_when_the_run_ends(tmp_path):
    said = []
    saver = Saver(Store(tmp_path / "checkpoints"), 5, said.append)
    assert saver.open(5) == 5
    shutil.rmtree(tmp_path / "checkpoints")
    saver.add(5, "common", {"x": 1})
    assert "step-00000005 cannot be written" in str(saver.finish())
    assert saver.open(10) == 10
    saver.add(10, "common", {"x": 1})
    saver.commit(10, ["common"], {})
    assert saver.finish() is None
    saver.close()
    assert len(said) == 1
    assert Store(tmp_path / "checkpoints").names() == ["step-00000010"]


def test_a_checkpoint_that_cannot_be_begun_is_left_out(tmp_path):
    (tmp_path / "checkpoints").touch()
    said = []
    saver = Saver(Store(tmp_path / "checkpoints"), 5, said.append)
    assert saver.open(5) is None
    assert "step-00000005 cannot be written" in str(saver.finish())
    saver.close()
    assert len(said) == 1
