"""`paceline train --tensorboard`: what TensorBoard reads of it."""

import pytest

from paceline.errors import ConfigError
from paceline.training import tensorboard as ours

accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
)


def read(folder):
    found = accumulator.EventAccumulator(str(folder))
    found.Reload()
    return found


@pytest.mark.slow
def test_tensorboard_reads_figures_settings_and_workers(paceline, tmp_path):
    done = paceline(
        "train", "mnist", "-n", "2", "--epochs", "2", "--run-dir", "run", "--tensorboard"
    )
    assert done.returncode == 0, done.stderr
    common = read(tmp_path / "run" / "tensorboard")
    assert {"loss/train", "loss/validation", "accuracy/validation"} <= set(common.Tags()["scalars"])
    losses = common.Scalars("loss/train")
    assert [one.step for one in losses] == [10_000, 20_000]
    assert losses[1].value < losses[0].value
    settings = common.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"optimizer.lr" in settings
    for rank in range(2):
        worker = read(tmp_path / "run" / "tensorboard" / f"rank-{rank:04d}")
        assert set(worker.Tags()["scalars"]) == {"workers/loss", "workers/step_ms"}
        assert all(one.value > 0 for one in worker.Scalars("workers/step_ms"))


def test_without_tensorboard_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(ours, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"paceline\[tensorboard\]"):
        ours.TensorBoard()
