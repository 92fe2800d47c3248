"""What is not trained, under every rule: treated as docs/rules.md says."""

import numpy as np
import pytest
import torch
from torch import nn

from paceline import keep_pace
from paceline.comm import run_world
from paceline.rules import BSP, EASGD, RULES, Average, DiLoCo, Downpour, Gossip

RULES_UNDER_TEST = [
    BSP(),
    Average(every=2),
    DiLoCo(every=2),
    EASGD(every=2),
    EASGD(every=2, synchronous=True),
    Downpour(),
    Downpour(synchronous=True),
    Gossip(probability=0.5),
]


class Net(nn.Module):
    """A line with statistics, a counter and a frozen parameter, other ones on every rank."""

    def __init__(self, rank):
        super().__init__()
        self.line = nn.Linear(3, 1)
        self.frozen = nn.Parameter(torch.full((2,), 1.0 + rank), requires_grad=False)
        self.register_buffer("statistics", torch.full((4,), 10.0 * rank))
        self.register_buffer("counter", torch.tensor(100 * rank))


def test_the_table_has_every_rule():
    assert {rule.name for rule in RULES_UNDER_TEST} == set(RULES)


@pytest.mark.parametrize("rule", RULES_UNDER_TEST, ids=str)
def test_the_rest_of_a_model(rule):
    def program(world):
        model = Net(world.rank)
        optimizer = torch.optim.SGD(model.line.parameters(), lr=0.01)
        with keep_pace(model, optimizer, rule=rule):
            start = [model.frozen.tolist(), model.statistics.tolist(), model.counter.item()]
            for step in range(4 + world.rank):  # loops of different length
                optimizer.zero_grad()
                model.line(torch.full((2, 3), 1.0 + step)).square().mean().backward()
                model.statistics += 1.0 + world.rank
                model.counter += 1
                optimizer.step()
        weights = [parameter.tolist() for parameter in model.line.parameters()]
        return start, model.frozen.tolist(), model.statistics.numpy(), model.counter.item(), weights

    results = run_world(3, program)
    for rank, (start, frozen, statistics, counter, weights) in enumerate(results):
        assert start == [[1.0, 1.0], [0.0] * 4, 0]  # equal at the start: rank 0's
        assert frozen == [1.0, 1.0]
        mean = np.mean([4 * 1, 5 * 2, 6 * 3])  # of what the ranks have added
        assert statistics == pytest.approx([mean] * 4)
        assert counter == 4 + rank  # each rank's own
        assert weights == results[0][4]
