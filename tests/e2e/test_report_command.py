"""`paceline report`, and the page that `paceline train` leaves."""

import csv
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.browser import AXE, ask, look_at, why_no_axe, why_no_browser

from paceline.observe.page import write_report
from paceline.observe.page.figures import read_run

PICTURES = Path(__file__).parents[2] / "build" / "pictures"
NO_BROWSER, NO_AXE = why_no_browser(), why_no_axe()
FAULTS = """
async () => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const found = await axe.run(document);
  return found.violations.map(v => [v.id, v.impact, v.nodes.length, v.nodes[0].html.slice(0, 200)]);
}
"""
CURVES = """
() => [...document.querySelectorAll("figure")].map(figure => {
  const box = figure.querySelector("svg").getBoundingClientRect();
  const texts = [...figure.querySelectorAll("svg text")].map(t => t.getBoundingClientRect());
  return {
    title: figure.querySelector("h3").textContent,
    width: box.width,
    drawn: figure.querySelectorAll("path, rect").length,
    smallest: Math.min(...texts.filter(t => t.height).map(t => t.height)),
    page: document.documentElement.scrollWidth,
  };
})
"""


@pytest.fixture(scope="module")
def run(demo):
    """The directory of the run that the demo has left."""
    folder, done = demo
    assert done.returncode == 0
    return folder / re.search(r"run directory: (\S+)", done.stdout)[1]


@pytest.fixture(scope="module")
def page(run):
    return run / "report.html"


def test_a_run_says_its_verdict_and_where_its_report_is(demo, run, page):
    _, done = demo
    verdict = json.loads((run / "summary.json").read_text())["verdict"]
    assert f"verdict: {verdict['sentence']}"[:60] in done.stdout
    assert re.search(r"report: (\S+)", done.stdout)[1].endswith("/report.html")
    assert f"{verdict['sentence'][1:]}.</p>" in page.read_text()
    assert "train mnist -n 2 --epochs 1" in page.read_text()
    assert 20_000 < page.stat().st_size < 1_500_000


def test_runs_are_compared_and_written_as_tables(paceline, run, tmp_path):
    done = paceline("report", run, run, "--csv", "tables")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [
        "report.html", "tables/epochs.csv", "tables/steps.csv", "tables/workers.csv",
    ]  # fmt: skip
    assert "2 runs compared" in (tmp_path / "report.html").read_text()
    with (tmp_path / "tables" / "workers.csv").open() as file:
        assert [row["rank"] for row in csv.DictReader(file)] == ["0", "1"] * 2


def test_wrong_places_are_refused(paceline, run, tmp_path):
    done = paceline("report", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not a run directory" in done.stderr
    done = paceline("report", run, "-o", "no/such/folder.html")
    assert done.returncode != 0
    assert "no/such/folder.html cannot be written" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(NO_BROWSER is not None, reason=NO_BROWSER or "")
@pytest.mark.timeout(300)
class TestInABrowser:
    @pytest.mark.parametrize("width", [400, 1400])
    @pytest.mark.parametrize("dark", [False, True])
    def test_it_shows_curves_and_nothing_is_amiss(self, page, width, dark):
        """The pictures stay in build/pictures."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        picture = PICTURES / f"report-{width}{'-dark' * dark}.png"
        height = 5000 if width < 700 else 2700
        assert look_at(page, width, height, picture, dark) == []
        assert picture.stat().st_size > 30_000

    @pytest.mark.parametrize("width", [500, 1400])
    def test_plots_are_legible_and_fit(self, page, width):
        found = {one["title"]: one for one in ask(page, CURVES, width=width)}
        assert {"Loss", "Where the time went", "Throughput", "Time of a step"} <= found.keys()
        shown = [one for one in found.values() if one["width"]]
        assert len(shown) >= 4
        for one in shown:
            assert one["drawn"] > 0, one
            assert one["page"] <= width, one
        assert all(one["smallest"] > 10 for one in shown), shown

    @pytest.mark.skipif(NO_AXE is not None, reason=NO_AXE or "")
    def test_axe_finds_no_fault(self, page):
        assert ask(page, FAULTS, AXE, wait_ms=20_000) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_million_events_take_seconds_and_little_memory(tmp_path):
    ranks, steps = 8, 125_000
    (tmp_path / "run" / "events").mkdir(parents=True)
    line = (
        '{{"time": {:.6f}, "rank": {}, "node": "n{}", "event": "step", "step": {}, '
        '"seconds": 0.02, "loss": {}, "samples": 64, "bytes": 4096}}\n'
    )
    for rank in range(ranks):
        with (tmp_path / "run" / "events" / f"rank-{rank:04d}.jsonl").open("w") as file:
            for step in range(1, steps + 1):
                values = (1.7e9 + 0.02 * step, rank, rank // 4, step, 2 / (1 + step / 1000))
                file.write(line.format(*values))
    code = (
        "import resource, sys, time; from paceline.cli import main; main(sys.argv[1:]); "
        "print(time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    argv = [sys.executable, "-c", code, "report", str(tmp_path / "run")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    cpu_s, peak_kb = map(float, done.stdout.split()[-2:])
    assert peak_kb < 500_000
    assert cpu_s < 10, "on a core of its own it takes about 5"
    began = time.process_time()
    found = read_run(tmp_path / "run", most_bytes=4 << 20)
    write_report([found], tmp_path / "quick.html")
    assert time.process_time() - began < cpu_s / 5
    assert abs(found.part - (4 << 20) / sum(
        path.stat().st_size for path in (tmp_path / "run" / "events").iterdir()
    )) < 1e-6  # fmt: skip


def test_watch_shows_a_run_that_has_ended(paceline, run):
    done = paceline("watch", run)
    assert (done.returncode, done.stderr) == (0, "")
    state, verdict = done.stdout.splitlines()
    assert re.match(rf"{run.name}  finished  epoch 1/1  loss \d\.\d+  val loss", state)
    assert verdict.startswith(f"{run.name}  verdict: ")
