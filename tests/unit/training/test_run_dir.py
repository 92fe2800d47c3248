import errno
import logging
import os
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.line_problem import BATCH, build, data

from paceline import Callback, Trainer
from paceline.comm import SoloWorld
from paceline.config.reading import read_config
from paceline.errors import ConfigError, OutputError
from paceline.observe.trial import TRIAL
from paceline.training.model_file import check_room, save_model
from paceline.training.run_dir import find_run_dir, make_fresh, make_run_dir


def test_runs_lie_in_a_folder_of_their_own_with_the_time(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (make_fresh(read_config({"model": "mnist"})) for _ in range(2))
    assert first.parent == second.parent == Path("runs")
    assert first != second


def test_a_trial_leaves_nothing_where_the_user_works(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(TRIAL, str(tmp_path / "trial"))
    assert make_fresh(read_config({"model": "mnist"})).is_relative_to(tmp_path / "trial")
    assert not Path("runs").exists()


def test_a_disk_that_is_full_when_a_run_is_resumed_leaves_its_config(tmp_path, monkeypatch):
    config = read_config({"model": "mnist", "run_dir": str(tmp_path / "run")})
    path, claim = make_run_dir(config)
    claim.release()
    before = (path / "config.yaml").read_text()

    def full(self, text, **options):
        self.open("w").close()  # the name is there, and nothing behind it any more
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OutputError, match=r"config.yaml cannot be written: No space left"):
        make_run_dir(config, path)
    monkeypatch.undo()
    assert (path / "config.yaml").read_text() == before
    assert [p.name for p in path.iterdir() if p.name.startswith(".config")] == []
    make_run_dir(config, path)[1].release()  # nobody holds it


def test_a_run_leaves_what_it_said_and_how_to_load_it(tmp_path):
    class Warn(Callback):
        def on_epoch_end(self, trainer, epoch, logs):
            logging.getLogger("paceline").warning("epoch %d is warm", epoch)

    def train(**settings):
        Trainer(
            build, data(), data(), world=SoloWorld(), loss="mse", progress="off", epochs=2,
            data={"batch_size": BATCH}, run_dir=str(tmp_path), callbacks=[Warn()], **settings,
        ).fit()  # fmt: skip

    train()
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert lines[1].startswith("1 rank on 1 node, rule bsp")
    said = [line.split("  ")[0].split("] ")[-1] for line in lines[2:]]
    first, second = "warning: epoch 1 is warm", "warning: epoch 2 is warm"
    assert said == ["epoch 1/2", first, "epoch 2/2", second]
    readme = (tmp_path / "README.md").read_text()
    assert len(readme.splitlines()) == 3
    assert "build-bsp by rule bsp, 2 epochs on 1 ranks" in readme
    assert "safetensors.torch.load_file('model.safetensors')" in readme
    with pytest.raises(ConfigError, match="holds an earlier run"):
        train()


def test_what_ended_a_run_is_the_last_line_of_its_log(tmp_path):
    class Fail(Callback):
        def on_epoch_end(self, trainer, epoch, logs):
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        Trainer(
            build, data(), world=SoloWorld(), loss="mse", progress="off",
            data={"batch_size": BATCH}, run_dir=str(tmp_path), callbacks=[Fail()],
        ).fit()  # fmt: skip
    assert (tmp_path / "log.txt").read_text().endswith("[rank 0] RuntimeError: no more\n")


def test_a_directory_that_is_in_use_is_refused_with_who_holds_it(tmp_path):
    config = read_config({"model": "mnist", "run_dir": str(tmp_path / "run"), "resume": "auto"})
    path, claim = make_run_dir(config)
    (path / "config.yaml").write_text("mine")
    who = rf"in use by process {os.getpid()} on {socket.gethostname()} since 20\d\d-"
    with pytest.raises(ConfigError, match=who):
        make_run_dir(config, path)
    assert (path / "config.yaml").read_text() == "mine"
    claim.release()
    make_run_dir(config, path)[1].release()
    assert not (path / ".running").exists()


@pytest.mark.parametrize("left", ["", "nonsense", '{"pid": null}', '{"pid": 1e999, "since": 3}'])
def test_what_a_killed_job_has_left_is_taken_over(tmp_path, left):
    (tmp_path / ".running").write_text(left)
    config = read_config({"model": "mnist", "run_dir": str(tmp_path)})
    _, claim = make_run_dir(config)
    (tmp_path / ".running").write_text(left)  # whatever it says, it is held
    with pytest.raises(ConfigError, match=r"in use by (another job|process)"):
        make_run_dir(config)
    claim.release()


def test_the_runs_of_another_model_of_the_same_name_are_not_resumed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text("def mnist(): ...\n")
    ours = read_config({"model": "mnist", "resume": "auto"})
    theirs = read_config({"model": "my.py:mnist", "resume": "auto"})
    path, claim = make_run_dir(theirs)
    claim.release()
    (path / "checkpoints").mkdir()
    assert find_run_dir(ours) is None
    assert find_run_dir(theirs) == path.relative_to(tmp_path)


def test_the_runs_of_another_rule_are_not_resumed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ours, theirs = (
        read_config({"model": "mnist", "rule": rule, "resume": "auto"}) for rule in ("bsp", "easgd")
    )
    path, claim = make_run_dir(theirs)
    claim.release()
    (path / "checkpoints").mkdir()
    assert find_run_dir(theirs) == path.relative_to(tmp_path)
    path.rename(path.with_name("20260101-000000-mnist-bsp"))  # names tell what users like
    assert find_run_dir(ours) is None


def test_a_disk_without_room_for_the_model_is_told_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3_000_000))
    check_room(tmp_path, 3_000_000)
    with pytest.raises(OutputError, match=r"takes 5.0 MB, and there are 3.0 MB free .*2.0 MB are"):
        check_room(tmp_path, 5_000_000)


def test_a_model_that_finds_no_room_is_kept_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def save(path):
        file = path.with_suffix(".bin")
        file.write_bytes(b"half")
        if (tmp_path / "run") in path.parents:
            raise RuntimeError("I/O error: No space left on device")
        return file

    with pytest.raises(OutputError, match=r"No space left on device\. It is in \S+here\S+bin inst"):
        save_model(save, tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    (kept,) = (tmp_path / "here").glob("*/model.bin")
    assert kept.read_bytes() == b"half"


class During(Callback):
    """Calls a function after each step, with the trainer."""

    def __init__(self, act):
        self.act, self.steps = act, 0

    def on_batch_end(self, trainer, step, logs):
        self.steps += 1
        self.act(trainer)


def train(folder, act=lambda trainer: None):
    during = During(act)
    trainer = Trainer(
        build, data(), world=SoloWorld(), loss="mse", progress="off", epochs=1,
        data={"batch_size": BATCH}, run_dir=str(folder), callbacks=[during],
    )  # fmt: skip
    return trainer, during


def test_a_training_looks_for_room_before_its_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3))
    trainer, during = train(tmp_path / "run")
    with pytest.raises(OutputError, match="the model takes"):
        trainer.fit()
    assert during.steps == 0


def test_a_training_whose_disk_is_full_at_the_end_keeps_its_model_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    trainer, _ = train(tmp_path / "run", lambda trainer: fill(trainer.replica))

    def fill(replica):
        save = type(replica).save

        def find_no_room(path):
            if tmp_path / "run" in path.parents:
                raise OSError(errno.ENOSPC, "No space left on device")
            return save(replica, path)

        replica.save = find_no_room

    with pytest.raises(OutputError, match=r"No space left on device\. It is in \S+here\S+ inst"):
        trainer.fit()
    assert len(list((tmp_path / "here").glob("*/model.*"))) == 1


def test_a_training_holds_its_directory_while_it_lasts(tmp_path):
    refused = []

    def intrude(trainer):
        with pytest.raises(ConfigError, match="in use by process"):
            make_run_dir(trainer.config, trainer.run_dir)
        refused.append(trainer.run_dir)

    trainer, during = train(tmp_path / "run", intrude)
    result = trainer.fit()
    assert len(refused) == during.steps > 0
    make_run_dir(trainer.config, result.run_dir)[1].release()
