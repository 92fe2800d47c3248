"""The table at the end of a run."""

import io

import pytest

from paceline.observe import EpochRecord, History, TimeSplit, final_table, render_final

HISTORY = History(
    [
        EpochRecord(1, 60_000, 4.9, 0.31416, None, None, 0.1, 12_345.4, TimeSplit()),
        EpochRecord(2, 60_000, 4.8, 0.1, 0.03456, 0.98714, 0.1, 98.6, TimeSplit(8, 1, 0.5, 0.5)),
    ]
)


def render(history=HISTORY, terminal=False, width=None, ranks=None, advice=None) -> str:
    stream = io.StringIO()
    render_final(history, stream, terminal, width, ranks, advice)
    return stream.getvalue()


def test_a_file_gets_this_table():
    lines = [line.rstrip() for line in render(ranks=2).splitlines()]
    assert lines == [
        "epoch | train loss | val loss | val accuracy | samples/s | compute |   wait "
        "| communication |  data",
        "======+============+==========+==============+===========+=========+========"
        "+===============+======",
        "    1 |     0.3142 |        - |            - |    12,345 |       - |      - "
        "|             - |     -",
        "    2 |     0.1000 |   0.0346 |      98.71 % |        99 |  80.0 % | 10.0 % "
        "|         5.0 % | 5.0 %",
        "shares of time: mean over 2 ranks",
    ]


@pytest.mark.parametrize("width", [None, 40, 80, 200])
@pytest.mark.parametrize("history", [HISTORY, History()])
def test_a_file_gets_ascii_without_control_characters(history, width):
    text = render(history, width=width)
    assert text.isascii()
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize("terminal", [True, False])
def test_80_columns_hold_every_heading_and_number_whole(terminal):
    text = render(terminal=terminal, width=80)
    for word in ("epoch", "train", "accuracy", "samples/s", "communication", "data"):
        assert word in text
    for number in ("0.0346", "98.71 %", "12,345", "80.0 %", "10.0 %", "5.0 %"):
        assert number in text


def test_a_terminal_gets_lines_and_bold_headings():
    text = render(terminal=True, width=120)
    assert "\u2500" in text
    assert "\x1b[1m" in text


def test_an_empty_history_says_so():
    assert "no epoch was finished" in render(History(), ranks=2)


@pytest.mark.parametrize(
    ("ranks", "caption"), [(None, None), (1, "mean over 1 rank"), (4, "mean over 4 ranks")]
)
def test_the_caption_names_the_ranks(ranks, caption):
    table = final_table(HISTORY, ranks)
    assert table.row_count == 2
    assert table.caption == (caption and f"shares of time: {caption}")


def test_advice_comes_below_the_table_and_fits_its_width():
    text = render(ranks=2, width=80, advice="ranks waited 31 % of the time: " + "word " * 30)
    lines = text.splitlines()
    below = lines[
        next(n for n, line in enumerate(lines) if line.startswith("shares of time")) + 1 :
    ]
    assert below[0].startswith("ranks waited 31 % of the time: word")
    assert " ".join(below).split().count("word") == 30
    assert max(map(len, below)) <= 80
