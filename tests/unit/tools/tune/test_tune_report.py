"""Table, JSON and plot."""

import json
from dataclasses import replace

import pytest

from paceline.observe.waiting import RunFacts, Waiting
from paceline.tools.tune.command import TrialCommand
from paceline.tools.tune.figures import Estimate
from paceline.tools.tune.plan import RankSetting
from paceline.tools.tune.report import (
    draw,
    format_bytes,
    plain,
    render_advice,
    render_notes,
    render_table,
)
from paceline.tools.tune.trial import Outcome

MB = 10**6
OUTCOMES = [
    Outcome(
        RankSetting(2),
        "measured",
        Estimate(
            *("samples", 5400.0, 0.01, 0.09, 128.0, 50, 10.0, 40, 305 * MB, 520 * MB, 90 * MB),
            waits=Waiting(2, 50, 10.0, uneven=0.07, slow=0.02),
            facts=RunFacts(),
        ),
    ),
    Outcome(
        RankSetting(4),
        "early",
        Estimate("samples", 2100.4, 0.01, 0.412, 256.0, 50, 4.0, 40, 310 * MB, 1040 * MB, 90 * MB),
        "stopped early: far below the best",
    ),
    Outcome(RankSetting(8), "skipped", reason="more ranks were slower already"),
    Outcome(
        RankSetting(1, 2),
        "measured",
        Estimate("samples", 3200.0, 0.01, 0.0, 64.0, 50, 10.0, 40, 312 * MB, 312 * MB),
    ),
    Outcome(RankSetting(1), "failed", reason="exit code 1: " + "x" * 100, code=1),
]


def test_the_table_has_a_line_per_setting_and_marks_the_best():
    assert render_table(OUTCOMES).splitlines() == [
        "ranks  threads  batch  samples/s  speed-up  waiting  uneven  memory/rank  in all",
        "    1        1      -          -         -        -       -            -       -  failed: "
        "exit code 1: " + "x" * 66 + "...",
        "    1        2     64      3,200      1.00      0 %       -       312 MB  312 MB",
        "    2        1    128      5,400      1.69      9 %     7 %       305 MB  520 MB  <- best",
        "    4        1    256      2,100      0.66     41 %       -       310 MB  1.0 GB  stopped "
        "early: far below the best",
        "    8        1      -          -         -        -       -            -       -  skipped"
        ": more ranks were slower already",
    ]


def test_the_unit_names_what_was_counted_and_a_note_explains_it():
    steps = [Outcome(RankSetting(2), "measured", Estimate("steps", 46.29, batch=2.0))]
    assert "steps/s" in render_table(steps)
    assert "46.3" in render_table(steps)
    assert "paceline.shard" in render_notes(steps)
    runs = [Outcome(RankSetting(2), "measured", Estimate("runs", 0.0123))]
    assert "0.0123" in render_table(runs)
    assert "whole script was timed" in render_notes(runs)
    assert "learning rates" in render_notes(OUTCOMES)


def test_ranks_that_were_not_seen_are_told_of():
    far = [Outcome(RankSetting(4), "measured", Estimate("samples", 1.0, missing=2))]
    assert "2 ranks on other nodes" in render_notes(far)
    assert "other nodes" not in render_notes(OUTCOMES)


def test_the_best_setting_gets_advice_in_lines_that_fit():
    said = render_advice(OUTCOMES, cores=2)
    first, *lines = said.splitlines()
    assert (first, said[-1]) == ("", "\n")
    assert " ".join(lines).startswith("ranks waited 9 % of the time, now for one of them, now")
    assert "(data.cost) would make the run up to 1.10x faster" in " ".join(lines)
    assert max(map(len, lines)) <= 100


def test_a_script_is_advised_of_functions():
    best = OUTCOMES[0]
    own = replace(best, estimate=replace(best.estimate, facts=RunFacts(own_loop=True)))
    assert "paceline.shard(..., cost=...)" in " ".join(render_advice([own], cores=2).split())


def test_advice_is_for_the_cores_there_are_and_not_to_tune_again():
    assert "more ranks than cores" in " ".join(render_advice(OUTCOMES, cores=1).split())
    best = OUTCOMES[0]
    streamed = replace(best.estimate, facts=RunFacts(can_cost=False, can_deal=False))
    assert "paceline tune" not in render_advice([replace(best, estimate=streamed)], cores=2)


def test_no_advice_is_no_line():
    assert render_advice(OUTCOMES[1:], cores=2) == ""
    assert render_advice([], cores=2) == ""
    assert render_advice([Outcome(RankSetting(2), "measured", Estimate("runs", 1.0))], 2) == ""


def test_a_note_explains_uneven_where_ranks_wait():
    assert "uneven: the part of the waiting" in render_notes(OUTCOMES)
    assert "uneven" not in render_notes(OUTCOMES[1:])


def test_json_has_all_figures_and_the_command():
    content = json.loads(json.dumps(plain(OUTCOMES, TrialCommand("train", ("mnist",)), 2)))
    assert content["best"] == {"ranks": 2, "threads": 1}
    assert content["command"] == "paceline train mnist -n 2 --threads 1"
    assert content["trials"][0]["estimate"]["rate"] == 5400
    assert content["trials"][0]["estimate"]["batch"] == 128
    assert content["trials"][0]["estimate"]["waits"]["uneven"] == 0.07
    assert content["advice"].startswith("ranks waited 9 %")
    assert content["trials"][2]["estimate"] is None
    assert content["trials"][2]["status"] == "skipped"


@pytest.mark.parametrize(
    ("count", "text"), [(None, "-"), (312_400_000, "312 MB"), (4_100_000_000, "4.1 GB")]
)
def test_bytes_are_short(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(("name", "begin"), [("p.svg", b"<?xml"), ("p.png", b"\x89PNG")])
def test_the_plot_is_drawn_with_a_line_per_number_of_threads(tmp_path, name, begin):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    draw(OUTCOMES, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    assert content.startswith(begin)
    if name == "p.svg":
        for label in ("1 thread per rank", "2 threads per rank", "best: 2 ranks x 1 thread"):
            assert label.encode() in content  # matplotlib writes the text as a comment, too
