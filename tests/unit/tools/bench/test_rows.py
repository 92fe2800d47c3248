"""Rows as a table, as JSON, as a plot."""

import json
import sys

import pytest

from paceline.errors import ConfigError
from paceline.tools.bench.rows import Row, check_plot, plot_rows, render_table, write_rows

ROWS = [
    Row("allreduce", "4 KB, 2 ranks", "us", 10.0, {"gloo": 1234.0, "mpi": 5.0}),
    Row("allreduce", "1 MB, 2 ranks", "us", 0.5, {"memcpy": 0.5}, {"calls": 3}),
]


def test_a_column_for_each_peer_and_a_dash_where_a_row_has_none():
    head, first, second = render_table(ROWS).splitlines()
    names = ["case", "unit", "ours", "gloo", "vs", "gloo", "mpi", "vs", "mpi"]
    assert head.split() == [*names, "memcpy", "vs", "memcpy", "calls"]
    assert first.split()[4:] == ["us", "10", "1234", "123x", "5", "0.50x", "-", "-", "-"]
    assert second.split()[4:] == ["us", "0.5", "-", "-", "-", "-", "0.5", "1.00x", "3"]


def test_lines_are_as_wide_as_the_widest():
    lines = render_table(ROWS).splitlines()
    assert len({line.index("us") for line in lines[1:]} | {lines[0].index("unit")}) == 1
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("unit", "ours", "theirs", "ratio"),
    [
        ("us", 2.0, 6.0, "3.00x"),
        ("MB", 6.0, 2.0, "0.33x"),
        ("bytes/sample", 2.0, 6.0, "3.00x"),
        ("samples/s", 6.0, 2.0, "3.00x"),
        ("exchanges/s", 2.0, 6.0, "0.33x"),
        ("us", 0.0, 6.0, "-"),
        ("samples/s", 6.0, 0.0, "-"),
    ],
)
def test_the_ratio_is_above_one_where_ours_is_better(unit, ours, theirs, ratio):
    line = render_table([Row("b", "c", unit, ours, {"peer": theirs})]).splitlines()[1]
    assert line.split()[-1] == ratio


def test_json_is_a_plain_list_with_notes_only_where_there_are_some(tmp_path):
    write_rows(ROWS, tmp_path / "rows.json")
    first, second = json.loads((tmp_path / "rows.json").read_text())
    assert first == {
        "bench": "allreduce",
        "case": "4 KB, 2 ranks",
        "unit": "us",
        "ours": 10.0,
        "peers": {"gloo": 1234.0, "mpi": 5.0},
    }
    assert second["notes"] == {"calls": 3}


@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_a_plot_is_drawn_by_its_suffix(tmp_path, suffix, magic):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"rows{suffix}"
    plot_rows([*ROWS, Row("allreduce", "rate", "samples/s", 3.0, {})], path)
    assert path.read_bytes().startswith(magic)
    if suffix == ".svg":
        text = path.read_text()
        assert all(f"<!-- {word} -->" in text for word in ("ours", "gloo", "4 KB, 2 ranks"))
        assert "more is better" in text
        assert "less is better" in text


def test_a_plot_that_cannot_be_drawn_is_refused_before_measuring(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"rows\.doc must end in one of: \.svg"):
        check_plot(tmp_path / "rows.doc")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'paceline\[plots\]'"):
        check_plot(tmp_path / "rows.svg")
