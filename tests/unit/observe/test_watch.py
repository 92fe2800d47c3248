"""What a run's directory tells while it runs."""

import io
import json
import time
from dataclasses import replace

import pytest
from rich.console import Console

from paceline.errors import DataError
from paceline.observe import EpochRecord, EventLog, History, TimeSplit
from paceline.observe.watch.tail import RunTail
from paceline.observe.watch.view import describe_run, render_runs

RECORD = EpochRecord(1, 100, 2.0, 0.5, 0.25, 0.9, 0.05, 50.0, TimeSplit(1.0))


class Written:
    """A run directory as ranks write it."""

    def __init__(self, path, ranks=2, nodes=1):
        self.path = path
        (path / "events").mkdir(parents=True)
        (path / "config.yaml").write_text("model: mnist\nepochs: 4\n")
        (path / ".running").touch()
        self.logs = [
            EventLog(path / "events", rank, f"n{rank * nodes // ranks}", every_s=0.0)
            for rank in range(ranks)
        ]
        facts = {"ranks": ranks, "samples_per_epoch": 100, "asynchronous": False}
        self.logs[0].write("generation", **facts)
        self.step = 0

    def train(self, steps=1, **more):
        for _ in range(steps):
            self.step += 1
            for log in self.logs:
                log.write("step", step=self.step, seconds=0.1, loss=1.0, samples=10, **more)


@pytest.fixture
def written(tmp_path):
    return Written(tmp_path / "run")


def show(*runs, width=100, now=None):
    stream = io.StringIO()
    Console(file=stream, width=width).print(render_runs(runs, now))
    return stream.getvalue()


def test_it_follows_the_run_from_its_start_to_its_end(written):
    run = RunTail(written.path)
    run.look()
    assert describe_run(run).startswith("run  trains  epoch 1/4  0 samples/s")
    written.train(5)
    run.look()
    assert (run.samples, run.loss, [w.step for w in run.workers]) == (100, 1.0, [5, 5])
    assert run.left_s == pytest.approx(300 / run.samples_per_s)
    written.train(2)
    History([RECORD]).save(written.path / "history.jsonl")
    run.look()
    assert "epoch 2/4  loss 1.0000  val loss 0.2500  val accuracy 90.00 %" in describe_run(run)
    assert run.samples == 140
    verdict = {"verdict": {"sentence": "no rank stands out"}}
    (written.path / "summary.json").write_text(json.dumps(verdict))
    (written.path / ".running").unlink()
    assert run.is_over
    assert "finished" in describe_run(run)
    assert "verdict: no rank stands out" in show(run)


def test_half_a_line_is_read_when_it_is_whole(written):
    run = RunTail(written.path)
    with (written.path / "events" / "rank-0001.jsonl").open("a") as file:
        file.write('{"time": 5.0, "rank": 1, "node": "n", "event": "step", "step": 9, "sec')
        file.flush()
        run.look()
        assert run.workers[1].step == 0
        file.write('onds": 1.0, "loss": 1.0, "samples": 1}\n')
    run.look()
    assert run.workers[1].step == 9


def test_of_a_long_log_the_end_is_read_and_what_stands_first(written):
    written.train(4000)
    run = RunTail(written.path)
    run.look()
    assert (run.size, run.ranks, run.workers[1].step) == (100, 2, 4000)


def test_workers_have_a_line_each_and_many_one_per_node(tmp_path):
    few, many = Written(tmp_path / "few"), Written(tmp_path / "many", ranks=40, nodes=4)
    for one in (few, many):
        one.train(3)
        for log in one.logs:
            log.write("time", step=3, compute=3.0, wait=1.0, communication=0.0, data=0.0)
    few.logs[0].write("exchange", step=3, staleness=2, distance=0.5)
    runs = [RunTail(one.path) for one in (few, many)]
    for run in runs:
        run.look()
    found = show(runs[0], now=time.time() + 30)
    assert "distance" in found
    assert "25 %" in found
    assert len([line for line in found.splitlines() if line.endswith("s ago")]) == 2
    found = show(runs[1])
    assert [f"n{n} (10 ranks)" in found for n in range(4)] == [True] * 4
    assert all(len(line) <= 60 for line in show(runs[0], width=60).splitlines())
    assert "few" in (both := show(*runs))
    assert "many" in both


def test_a_run_that_is_silent_or_was_killed_is_told_apart(written):
    written.train()
    run = RunTail(written.path)
    run.look()
    assert "silent for 0:05:" in describe_run(run, time.time() + 301)
    (written.path / ".running").unlink()
    assert "ended without a result" in describe_run(run)


def test_ranks_that_were_lost_are_not_shown(tmp_path):
    written = Written(tmp_path / "run", ranks=3)
    written.train()
    written.logs[0].write("generation", ranks=2, samples_per_epoch=100)
    run = RunTail(written.path)
    run.look()
    assert len(run.workers) == 2


def test_a_history_of_more_epochs_counts(written):
    History([RECORD, replace(RECORD, epoch=2)]).save(written.path / "history.jsonl")
    run = RunTail(written.path)
    run.look()
    assert run.samples == 200


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(DataError, match="not a run directory"):
        RunTail(tmp_path)
