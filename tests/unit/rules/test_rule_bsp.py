"""The settings of BSP that say how gradients travel."""

import pytest

from paceline.config.reading import read_assignment, read_config
from paceline.errors import ConfigError
from paceline.rules import BSP, RULES, make_rule
from paceline.rules.checks import WIRES


def test_powersgd_has_a_rank():
    assert BSP(wire="powersgd", rank=2).powersgd_rank == 2
    assert BSP(wire="powersgd").powersgd_rank == 4
    assert make_rule({"name": "bsp", "wire": "powersgd", "rank": 3}).powersgd_rank == 3


@pytest.mark.parametrize("wire", WIRES)
def test_no_other_format_has_one(wire):
    assert BSP(wire=wire).powersgd_rank is None
    with pytest.raises(ConfigError) as caught:
        BSP(wire=wire, rank=4)
    assert str(caught.value) == (
        f"rule.rank is 4 and rule.wire {wire}, which has no rank; set rule.wire=powersgd, or leave "
        "rule.rank out"
    )


@pytest.mark.parametrize("rank", [0, -1, 1.5, True, "4"])
def test_a_rank_is_a_whole_number(rank):
    with pytest.raises(ConfigError) as caught:
        BSP(wire="powersgd", rank=rank)
    assert str(caught.value) == f"rule.rank is {rank!r}, expected a whole number of 1 or more"


def test_powersgd_is_not_for_weights():
    with pytest.raises(ConfigError, match="powersgd is for gradients: set "):
        BSP(what="weights", every=2, wire="powersgd")


@pytest.mark.parametrize("name", sorted(set(RULES) - {"bsp"}))
def test_other_rules_name_the_one_that_has_it(name):
    with pytest.raises(ConfigError) as caught:
        make_rule({"name": name, "wire": "powersgd"})
    assert str(caught.value) == (
        "rule.wire is 'powersgd', expected one of: float32, bfloat16, float16, int8; powersgd is "
        "for gradients: rule bsp"
    )


def test_a_word_that_nobody_knows_is_not_explained():
    with pytest.raises(ConfigError) as caught:
        BSP(wire="int4")
    assert str(caught.value).endswith("expected one of: float32, bfloat16, float16, int8, powersgd")


def test_it_is_read_from_assignments_and_written_to_be_read_again():
    given = map(read_assignment, ("rule.name=bsp", "rule.wire=powersgd", "rule.rank=2"))
    config = read_config({"model": "mnist"}, *given)
    assert config.rule == BSP(wire="powersgd", rank=2)
    assert read_config({"model": "mnist", "rule": config.describe()["rule"]}).rule == config.rule
    plain = read_config({"model": "mnist"}).describe()["rule"]
    assert read_config({"model": "mnist", "rule": plain}).rule == BSP()
