"""-n and --threads: numbers that no machine can mean are refused before anything is started."""

import argparse

import pytest

from paceline.cli.rank_options import add_rank_options
from paceline.errors import LaunchError
from paceline.launch.placement import most_ranks_here, plan_ranks


@pytest.mark.parametrize("option", ["-n", "--threads"])
@pytest.mark.parametrize("value", ["1000000000", "9" * 5000, "0", "\u0663\u0663"])
def test_the_message_names_value_and_bound(option, value, capsys):
    parser = argparse.ArgumentParser()
    add_rank_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([option, value])
    told = capsys.readouterr().err
    assert f"'{value[:40]}" in told
    assert "is not a number from 1 to 1" in told
    assert len(told) < 1500


def test_more_ranks_than_this_machine_could_bear_are_refused():
    most = most_ranks_here()
    assert plan_ranks(most, 1, (), None).ranks == most
    with pytest.raises(LaunchError, match=rf"-n {most + 1} .*at most {most}.*--hosts"):
        plan_ranks(most + 1, 1, (), None)
