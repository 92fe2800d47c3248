"""Asynchronous rules under real mpirun: they end, agree, and leave nothing behind."""

import pytest

EASGD = {"name": "easgd", "every": 4}
DOWNPOUR = {"name": "downpour", "push_every": 4, "pull_every": 4, "staleness": "agn"}
GOSSIP = {"name": "gossip", "probability": 1.0}
ADAM = {"server_optimizer": {"name": "adam", "lr": 0.003}}

IN_NODE_MEMORY = [(EASGD, {}), (DOWNPOUR, {}), (GOSSIP, {}), (EASGD, {"overlap": True})]
WITH_SERVERS = [
    (EASGD, {"servers": 1}),
    (EASGD, {"servers": 2, "overlap": True}),
    (DOWNPOUR | ADAM, {"servers": 1}),
    (DOWNPOUR, {"servers": 2, "wire": "int8"}),
    (EASGD, {"servers": 1, "wire": "bfloat16"}),
]
EVERY_RANK_A_NODE = [(EASGD, {}), (DOWNPOUR, {"overlap": True}), (GOSSIP, {"wire": "float16"})]
ON_FIVE_RANKS = [
    (EASGD, {}),
    (GOSSIP, {}),
    (DOWNPOUR | {"staleness": "dynsgd"}, {"servers": 1}),
]


def describe(settings):
    return " ".join(str(value) for value in settings.values() if not isinstance(value, dict))


def each_of(cases):
    """Each a rule and the settings of its exchange."""
    ids = [describe(rule | exchange) for rule, exchange in cases]
    return pytest.mark.parametrize(("rule", "exchange"), cases, ids=ids)


def check(outcome, ranks, rule, exchange, every_rank_a_node):
    servers = exchange.get("servers", 0)
    assert outcome["equal"]
    assert not any(outcome["left"])
    assert sum(outcome["samples"]) == 10 * 600
    assert all(outcome["samples"][: ranks - servers])
    assert outcome["samples"][ranks - servers :] == [0] * servers
    assert len(outcome["val_losses"]) == 10
    assert outcome["val_losses"][-1] < 0.5
    nothing_sent = rule["name"] != "gossip" and not servers and not every_rank_a_node
    assert (outcome["bytes"] == 0) == nothing_sent


@each_of(IN_NODE_MEMORY)
def test_in_the_memory_of_the_node(resident, tmp_path, rule, exchange):
    outcome = resident(3, "async_rules:train", tmp_path, rule, exchange, False)
    check(outcome, 3, rule, exchange, every_rank_a_node=False)


@each_of(WITH_SERVERS)
def test_with_servers(resident, tmp_path, rule, exchange):
    outcome = resident(4, "async_rules:train", tmp_path, rule, exchange, False)
    check(outcome, 4, rule, exchange, every_rank_a_node=False)


@each_of(EVERY_RANK_A_NODE)
def test_with_every_rank_a_node(resident, tmp_path, rule, exchange):
    outcome = resident(3, "async_rules:train", tmp_path, rule, exchange, True)
    check(outcome, 3, rule, exchange, every_rank_a_node=True)


@pytest.mark.slow
@each_of(ON_FIVE_RANKS)
def test_on_five_ranks(own_job, tmp_path, rule, exchange):
    outcome = own_job(5, "async_rules:train", tmp_path, rule, exchange, False)
    check(outcome, 5, rule, exchange, every_rank_a_node=False)


def test_a_server_with_nothing_to_do_sleeps(resident):
    """It takes 2 % of a core, however busy the machine is; one that spins, all it can get."""
    _, server = resident.on_all(2, "async_rules:idle_server", 0.5)
    assert server < 0.15


@pytest.mark.parametrize("rule", [EASGD, GOSSIP], ids=describe)
def test_nobody_waits_while_rank_0_validates(resident, tmp_path, rule):
    """Else rank 0, which validates until the others have made some steps, would never go on."""
    steps = resident(3, "async_rules:validate_long", tmp_path, rule)
    assert sum(steps) == 10 * 30
