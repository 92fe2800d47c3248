"""What ranks say of their speed travels in the head of a step."""

import numpy as np
import pytest
import torch

from paceline.comm import run_world
from paceline.frameworks.torch.loop import TorchLoop
from paceline.observe import Stopwatch
from paceline.rules import BSP
from paceline.sync.interface import Contribution
from paceline.sync.make import make_exchange
from paceline.sync.settings import ExchangeContext, ExchangeSettings


@pytest.mark.parametrize("nodes", ["one", "each"])
@pytest.mark.parametrize("share", [True, False])
def test_every_rank_hears_every_speed_of_this_step(share, nodes):
    def program(world):
        if nodes == "each":
            world.node_ranks = (world.rank,)
        model = torch.nn.Linear(3, 1)
        loop = TorchLoop(model, torch.optim.SGD(model.parameters(), lr=0.1))
        context = ExchangeContext(settings=ExchangeSettings(share=share))
        exchange = make_exchange(world, loop, BSP(), context)
        heard = []
        for step in range(3):
            model(torch.ones(2, 3)).sum().backward()
            mine = Contribution(2, 1.0, more=True, speed=10.0 * step + world.rank)
            heard.append(exchange.before_step(mine, Stopwatch()).speeds.tolist())
            loop.clear_gradients()
        exchange.close()
        return heard

    expected = [(10.0 * step + np.arange(3)).tolist() for step in range(3)]
    assert run_world(3, program) == [expected] * 3
