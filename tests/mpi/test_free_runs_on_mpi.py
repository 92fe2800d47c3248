"""Asynchronous rules under real mpirun: they end, agree, and leave nothing behind."""

import json
import re

import pytest

EASGD = {"name": "easgd", "every": 4}
DOWNPOUR = {"name": "downpour", "push_every": 4, "pull_every": 4, "staleness": "agn"}
GOSSIP = {"name": "gossip", "probability": 1.0}


@pytest.mark.parametrize(
    ("ranks", "pretend", "rules"),
    [
        (3, 0, [EASGD, DOWNPOUR, GOSSIP, EASGD | {"overlap": True}]),
        (
            4,
            0,
            [
                EASGD | {"servers": 1},
                EASGD | {"servers": 2, "overlap": True},
                DOWNPOUR | {"servers": 1, "server_optimizer": {"name": "adam", "lr": 0.003}},
                DOWNPOUR | {"servers": 2, "wire": "int8"},
                EASGD | {"servers": 1, "wire": "bfloat16"},
            ],
        ),
        (3, 1, [EASGD, DOWNPOUR | {"overlap": True}, GOSSIP | {"wire": "float16"}]),
        (5, 0, [EASGD, GOSSIP, DOWNPOUR | {"staleness": "dynsgd", "servers": 1}]),
    ],
    ids=["node memory", "servers", "every rank a node", "five ranks"],
)
def test_free_runs(mpirun, tmp_path, ranks, pretend, rules):
    done = mpirun(ranks, "free_runs.py", tmp_path, pretend, json.dumps(rules), timeout_s=110)
    assert done.returncode == 0, done.stderr
    outcomes = [json.loads(text) for text in re.findall(r"OUTCOME (.*)", done.stdout)]
    assert [outcome["rule"] for outcome in outcomes] == rules
    for outcome in outcomes:
        servers = outcome["rule"].get("servers", 0)
        assert outcome["equal"], outcome
        assert not any(outcome["left"]), outcome
        assert sum(outcome["samples"]) == 10 * 600, outcome
        assert outcome["epochs"] == 10, outcome
        assert outcome["samples"][ranks - servers :] == [0] * servers, outcome
        assert 0 < outcome["samples"][1] < outcome["samples"][0], outcome  # rank 1 is slow
        assert outcome["val_loss"] < 0.5, outcome
        nothing_sent = outcome["rule"]["name"] != "gossip" and not servers and not pretend
        assert (outcome["bytes"] == 0) == nothing_sent, outcome


def test_a_server_with_nothing_to_do_sleeps(mpirun):
    done = mpirun(2, "idle_server.py", timeout_s=60)
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"SHARE (\S+)", done.stdout)[1]) < 0.05


@pytest.mark.parametrize("rule", [EASGD, GOSSIP], ids=lambda rule: rule["name"])
def test_nobody_waits_while_rank_0_validates(mpirun, tmp_path, rule):
    done = mpirun(3, "validation_gap.py", tmp_path / "run", json.dumps(rule), timeout_s=60)
    assert done.returncode == 0, done.stderr
    gaps = [float(gap) for gap in re.findall(r"GAP (\S+)", done.stdout)]
    assert len(gaps) == 2
    assert max(gaps) < 1.0
