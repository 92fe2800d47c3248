"""Settings of an exchange: what each may be, and which rule uses which."""

import pytest

from paceline.config.reading import read_assignment, read_config
from paceline.errors import ConfigError
from paceline.rules import BSP, RULES, make_rule
from paceline.sync.settings import WIRES, ExchangeSettings, check_settings, make_settings


def test_powersgd_has_a_rank():
    assert ExchangeSettings(wire="powersgd", powersgd_rank=2).matrix_rank == 2
    assert ExchangeSettings(wire="powersgd").matrix_rank == 4


@pytest.mark.parametrize("wire", WIRES)
def test_no_other_format_has_one(wire):
    assert ExchangeSettings(wire=wire).matrix_rank is None
    with pytest.raises(ConfigError) as caught:
        ExchangeSettings(wire=wire, powersgd_rank=4)
    assert str(caught.value) == (
        f"exchange.powersgd_rank is 4 and exchange.wire {wire}, which has no rank; set "
        "exchange.wire=powersgd, or omit the rank"
    )


@pytest.mark.parametrize("rank", [0, -1, 1.5, True, "4"])
def test_a_rank_is_a_whole_number(rank):
    with pytest.raises(ConfigError) as caught:
        ExchangeSettings(wire="powersgd", powersgd_rank=rank)
    expected = f"exchange.powersgd_rank is {rank!r}, expected a whole number of 1 or more"
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"servers": -1}, "exchange.servers is -1, expected a whole number of 0 or more"),
        ({"servers": 0.5}, "exchange.servers is 0.5, expected a whole number of 0 or more"),
        ({"servers": True}, "exchange.servers is True, expected a whole number"),
        ({"overlap": "yes"}, "exchange.overlap is 'yes', expected true or false"),
        ({"share": 1}, "exchange.share is 1, expected true or false"),
        (
            {"wire": "int4"},
            "is 'int4', expected one of: float32, bfloat16, float16, int8, powersgd",
        ),
        ({"wires": "int8"}, "exchange has no setting wires; it takes: share, overlap, wire, power"),
        ("int8", "exchange is 'int8', expected settings of: share, overlap"),
    ],
)
def test_a_wrong_value_is_told_with_the_valid_ones(given, message):
    with pytest.raises(ConfigError) as caught:
        make_settings(given)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", sorted(set(RULES) - {"bsp"}))
def test_powersgd_is_for_gradients(name):
    with pytest.raises(ConfigError) as caught:
        check_settings(make_rule(name), ExchangeSettings(wire="powersgd"))
    assert str(caught.value) == (
        "exchange.wire is powersgd, which is for gradients: rule bsp; "
        f"rule {name} takes one of: float32, bfloat16, float16, int8"
    )


USED = {
    "bsp": {"share", "overlap", "wire"},
    "average": {"wire"},
    "diloco": {"wire"},
    "easgd": {"servers", "overlap", "wire"},
    "downpour": {"servers", "overlap", "wire"},
    "gossip": {"wire"},
}
CHANGED = {"share": False, "overlap": True, "wire": "int8", "servers": 1}


@pytest.mark.parametrize("setting", CHANGED)
@pytest.mark.parametrize("name", RULES)
def test_a_setting_that_the_rule_ignores_is_an_error(name, setting):
    settings = ExchangeSettings(**{setting: CHANGED[setting]})
    if setting in USED[name]:
        check_settings(make_rule(name), settings)
        return
    with pytest.raises(ConfigError, match=f"exchange.{setting} set, which has no effect with rule"):
        check_settings(make_rule(name), settings)
    with pytest.raises(ConfigError, match=f"exchange.{setting} set, which has no effect with rule"):
        read_config({"model": "mnist", "rule": name, "exchange": {setting: CHANGED[setting]}})


@pytest.mark.parametrize("name", ["easgd", "downpour"])
def test_a_synchronous_rule_has_no_server_and_no_overlap(name):
    rule = make_rule({"name": name, "synchronous": True})
    settings = ExchangeSettings(servers=0, overlap=True)
    with pytest.raises(ConfigError) as caught:
        check_settings(rule, settings)
    assert str(caught.value) == (
        f"exchange.overlap, exchange.servers set, which has no effect with rule {name} "
        "(synchronous); omit it. This rule uses: wire"
    )
    check_settings(rule, ExchangeSettings(wire="int8"))


def test_they_are_read_from_assignments_and_written_to_be_read_again():
    given = ("rule=bsp", "exchange.wire=powersgd", "exchange.powersgd_rank=2")
    config = read_config({"model": "mnist"}, *map(read_assignment, given))
    assert config.exchange == ExchangeSettings(wire="powersgd", powersgd_rank=2)
    written = {key: config.describe()[key] for key in ("rule", "exchange")}
    again = read_config({"model": "mnist", **written})
    assert (again.rule, again.exchange) == (config.rule, config.exchange)
    plain = read_config({"model": "mnist"}).describe()
    again = read_config({"model": "mnist", "rule": plain["rule"], "exchange": plain["exchange"]})
    assert (again.rule, again.exchange) == (BSP(), ExchangeSettings())
