"""The options of `paceline bench`."""

import argparse

import pytest

from paceline.cli import main
from paceline.tools.bench import BENCHES
from paceline.tools.bench.options import add_counts, add_shared_options, default_rounds


def read(*arguments, rounds=None):
    parser = argparse.ArgumentParser()
    add_counts(parser, default=(2, 4), least=2)
    if rounds is not None:
        parser.set_defaults(rounds=rounds)
    add_shared_options(parser)
    args = parser.parse_args(arguments)
    default_rounds(args)
    return args


def test_rounds_default_to_five_fewer_when_quick_or_to_what_the_bench_has_set():
    assert read().rounds == 5
    assert read("--quick").rounds == 2
    assert read("--quick", "--rounds", "7").rounds == 7
    assert read(rounds=1).rounds == 1
    assert read("--rounds", "3", rounds=1).rounds == 3


def test_numbers_of_ranks():
    assert read().ranks == (2, 4)
    assert read("-n", "3", "5").ranks == [3, 5]


@pytest.mark.parametrize("arguments", [("-n", "1"), ("-n", "two"), ("--rounds", "0")])
def test_a_number_that_is_too_small_or_none_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        read(*arguments)
    assert stop.value.code == 2
    assert f"{arguments[1]!r} is not a number of" in capsys.readouterr().err


@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.NAME)
def test_every_bench_has_the_shared_options(bench, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", bench.NAME, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(option in text for option in ("--json", "--plot", "--rounds", "--quick"))


def test_the_names_of_benches_differ():
    assert len({bench.NAME for bench in BENCHES}) == len(BENCHES) >= 2
