"""The page of a run, from made-up run directories."""

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from paceline.errors import DataError
from paceline.observe import EpochRecord, EventLog, History, TimeSplit
from paceline.observe.page.figures import read_run
from paceline.observe.page.make import render_page
from paceline.observe.page.tables import write_tables

RECORD = EpochRecord(1, 640, 2.0, 0.5, 0.25, 0.9, 0.05, 320.0, TimeSplit(1.0, 0.5, 0.4, 0.1))


def make_run(folder, ranks=2, epochs=3, steps=20, summary=True, exchanges=False, name="<b>&one"):
    path = folder / name
    path.mkdir(parents=True)
    for rank in range(ranks):
        with EventLog(path / "events", rank, f"n{rank // 2}") as log:
            if rank == 0:
                log.write(
                    "start", command="paceline train <x>", versions={"Python": "3"}, machine={}
                )
            for step in range(1, steps + 1):
                log.write("step", step=step, seconds=0.01, loss=2 / step, samples=8, bytes=100)
                if exchanges:
                    log.write("exchange", step=step, staleness=step % 3, distance=1 / step)
    records = [
        replace(RECORD, epoch=n, train_loss=1 / n, metrics={"val_auc": 0.5})
        for n in range(1, epochs + 1)
    ]
    History(records).save(path / "history.jsonl")
    (path / "config.yaml").write_text("model: </pre><script>alert(1)</script>\n")
    if summary:
        workers = [
            {
                "rank": r,
                "node": f"n{r // 2}",
                "compute": 3.0,
                "wait": 1.0,
                "communication": 0.5,
                "data": 0.5,
            }
            for r in range(ranks)
        ]
        verdict = {"kind": "rank", "sentence": "rank 1 arrives last in every step"}
        facts = {"ranks": ranks, "rule": "bsp", "seconds": 9.0, "samples_per_s": 320.0}
        (path / "summary.json").write_text(
            json.dumps({**facts, "workers": workers, "verdict": verdict})
        )
    return path


class Names(HTMLParser):
    """The tags that are open, and what is told by whom."""

    VOID = ("meta", "link", "input", "circle", "rect", "line", "path")

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.links = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [v for k, v in attributes if k in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def read_page(*runs):
    page = render_page([read_run(run) for run in runs])
    names = Names()
    names.feed(page)
    assert names.open == []
    return page, names


def test_the_page_begins_with_the_verdict_and_has_curves_tables_and_settings(tmp_path):
    page, names = read_page(make_run(tmp_path))
    first = re.sub(r"<[^>]+>", "", page[page.index("<h1>") : page.index("<dl")])
    assert first == "&lt;b&gt;&amp;oneRank 1 arrives last in every step."
    titles = re.findall(r"<h3>([^<]+)</h3>", page)
    assert titles[:3] == ["Loss", "Validation accuracy", "val auc"]
    assert {"Where the time went", "Time of a step", "Training loss in each step"} <= set(titles)
    assert "Sent by each rank" in titles
    assert names.tags.count("svg") == len(titles) == page.count("<details><summary>Table")
    assert "paceline train &lt;x&gt;" in page
    assert all(axis in page for axis in (">epochs<", ">samples<", ">time<"))


def test_it_needs_no_network_and_runs_no_script(tmp_path):
    page, names = read_page(make_run(tmp_path))
    assert "script" not in names.tags
    assert all(link.startswith("data:") for link in names.links)
    assert set(re.findall(r"https?:[^\"'% ]+", page)) == {"http://www.w3.org/2000/svg"}
    assert len(page) < 1_500_000


def test_asynchronous_runs_show_staleness_and_distance(tmp_path):
    page, _ = read_page(make_run(tmp_path, exchanges=True))
    assert "<h3>Staleness</h3>" in page
    assert "<h3>Distance from the centre</h3>" in page


def test_several_runs_lie_over_each_other_and_stand_in_a_table(tmp_path):
    runs = [make_run(tmp_path, name=f"run{n}", epochs=n + 1) for n in range(3)]
    page, _ = read_page(*runs)
    loss = page[page.index("<h3>Training loss</h3>") :]
    svg = re.search("<svg.*?</svg>", loss)[0]
    assert svg.count("<path") == 3
    assert all(f">run{n}</text>" in svg for n in range(3))
    assert len(re.findall(r'<tr class="says">', page)) == 3


def test_runs_of_one_name_are_all_shown(tmp_path):
    runs = [make_run(tmp_path / place, name="run") for place in "ab"]
    page, _ = read_page(*runs)
    for title in ("Training loss", "Time of a step"):
        svg = re.search("<svg.*?</svg>", page[page.index(f"<h3>{title}</h3>") :])[0]
        assert {">run</text>", ">run (2)</text>"} <= set(re.findall(">run[^<]*</text>", svg))


@pytest.mark.parametrize(
    "what",
    [{"summary": False}, {"epochs": 0}, {"ranks": 1}, {"steps": 0}, {"epochs": 1, "steps": 1}],
)
def test_runs_that_have_less_to_tell(tmp_path, what):
    page, _ = read_page(make_run(tmp_path, **what))
    assert ("has no summary" in page) == ("summary" in what)


def test_many_ranks_are_shown_by_node(tmp_path):
    page, _ = read_page(make_run(tmp_path, ranks=40, steps=2))
    bars = page[page.index("<h3>Where the time went") :]
    assert ">n19</text>" in re.search("<svg.*?</svg>", bars)[0]


def test_torn_and_foreign_lines_are_passed_over(tmp_path):
    run = make_run(tmp_path)
    log = run / "events" / "rank-0000.jsonl"
    log.write_bytes(b'{"event": 1}\nnot json\n\xff\n' + log.read_bytes() + b'{"time": 1, "ra')
    assert read_run(run).workers[0].steps == 20


def test_losses_that_are_not_numbers_break_no_curve(tmp_path):
    run = make_run(tmp_path)
    bad = replace(RECORD, epoch=1, train_loss=float("nan"), samples_per_s=float("inf"))
    (run / "history.jsonl").unlink()
    History([bad, replace(RECORD, epoch=2)]).save(run / "history.jsonl")
    page, _ = read_page(run)
    assert not re.search(r"\bnan\b|\binf\b", page.replace("nano", "").lower())


def test_of_long_logs_parts_are_read_and_the_page_says_so(tmp_path):
    run = make_run(tmp_path, steps=5000)
    found = read_run(run, most_bytes=200_000)
    assert 0 < found.workers[0].steps < 2500
    assert list(found.loss.bins)[-1] > list(read_run(run).loss.bins)[-1] * 0.8
    assert "paceline report reads all of them" in render_page([found])


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(DataError, match="not a run directory"):
        read_run(tmp_path)


def test_tables_have_what_the_page_has(tmp_path):
    runs = [read_run(make_run(tmp_path, name=name)) for name in ("a", "b")]
    paths = write_tables(runs, tmp_path / "csv")
    found = {path.name: list(csv.DictReader(path.open())) for path in paths}
    assert [(row["run"], row["epoch"]) for row in found["epochs.csv"]] == [
        (name, str(epoch)) for name in "ab" for epoch in (1, 2, 3)
    ]
    assert found["epochs.csv"][1]["train_loss"] == "0.5"
    assert found["epochs.csv"][1]["val_auc"] == "0.5"
    assert [row["step"] for row in found["steps.csv"]][:3] == ["1", "2", "3"]
    assert float(found["steps.csv"][1]["train_loss"]) == 1.0
    assert found["workers.csv"][1]["wait"] == "1.0"
