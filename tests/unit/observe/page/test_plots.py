"""Axes, series and drawings."""

import random
import re
from xml.etree import ElementTree

import pytest

from paceline.observe.page.axis import make_axis, make_tight_axis, write_tick
from paceline.observe.page.plots import Curve, draw_counts, draw_curves, draw_parts
from paceline.observe.page.series import MOST_BINS, Series

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg):
    return [node.text for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_series_of_a_million_points_stays_small_and_keeps_means_and_sums():
    series = Series()
    numbers = list(range(200_000))
    random.Random(0).shuffle(numbers)
    for number in numbers:
        series.add(number, float(number))
    assert MOST_BINS // 2 <= len(series.bins) <= MOST_BINS
    means = list(series.means())
    assert all(y == pytest.approx(x - 0.5, abs=1) for x, y in means[:-1])
    assert sum(found.weight for found in series.bins.values()) == len(numbers)


def test_rates_leave_out_bins_that_are_not_full():
    series = Series(1.0)
    for at in range(25, 65):
        series.add(at / 10, 5.0)
    assert [rate for _, rate in series.rates()] == [50.0] * 3


@pytest.mark.parametrize(
    "values", [[0.0], [5.0, 5.0], [0.1, 0.30000000001], [1e-9, 3e-9], [-3.0, 1e7], [1e300, 2e300]]
)
def test_axes_have_room_for_all_values(values):
    for axis in (make_axis(values, 100, 0, 4), make_axis(values, 100, 0, 4, zero=True)):
        assert 3 <= len(axis.ticks) <= 9
        assert all(-1e-6 <= axis.place(value) <= 100 + 1e-6 for value in values)


def test_counts_have_whole_ticks():
    assert make_tight_axis([1, 2, 3], 0, 100, 5).ticks == [1, 2, 3]
    assert make_tight_axis([1, 100], 0, 100, 5).ticks == [20, 40, 60, 80, 100]


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [(0, 1, "0"), (0.25, 0.25, "0.25"),
     (2.5, 2.5, "2.5"), (4000, 2000, "4000"), (-0.5, 0.5, "-0.5"),
     (40_000, 2e4, "40k"), (12_500, 2500, "12.5k"), (5e-5, 5e-5, "5e-5"),
     (1e6, 5e5, "1.0M")],
)  # fmt: skip
def test_ticks_say_no_more_than_they_must(value, step, text):
    assert write_tick(value, step) == text


def test_curves_are_named_at_their_ends_and_names_do_not_overlap():
    curves = [Curve(f"run {n}", [(1, 1.0), (2, 2.0 + n / 100)], n) for n in range(4)]
    root = ElementTree.fromstring(draw_curves("Loss <a>", "", "epoch", curves))
    ends = [node for node in root.iter(f"{SVG}text") if "name" in node.get("class", "")]
    assert sorted(node.text for node in ends) == [f"run {n}" for n in range(4)]
    places = sorted(float(node.get("y")) for node in ends)
    assert min(b - a for a, b in zip(places, places[1:], strict=False)) >= 14.9  # noqa: RUF007
    assert root.get("role") == "img"
    assert root.find(f"{SVG}title").text == "Loss <a>"
    assert "run 3: 2 points, first 1, last 2.03" in root.find(f"{SVG}desc").text
    assert len(list(root.iter(f"{SVG}path"))) == 4
    assert "epoch" in texts(draw_curves("Loss", "", "epoch", curves))


def test_a_bar_is_as_long_as_its_share():
    svg = draw_parts("Time", [("rank 0", {"compute": 0.75, "wait": 0.25})])
    widths = [float(width) for width in re.findall(r'<rect[^>]* width="([\d.]+)"', svg)]
    assert (widths[0] + 1) / (widths[1] + 1) == pytest.approx(3, abs=0.05)
    assert {"rank 0", "75 %", "25 %"} <= set(texts(svg))


def test_counts_of_rare_large_values_share_a_column():
    svg = draw_counts("Staleness", "updates", {0: 5, 1: 10, 900: 1, 9000: 4})
    assert "24+" in texts(svg)
    assert "24+: 5" in svg
