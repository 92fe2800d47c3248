"""A line fitted on many ranks: the small training that tests of rules share."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import paceline
from paceline.comm import SoloWorld, run_world
from paceline.training.trainer import Trainer

SAMPLES, BATCH = 92, 6


def data():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(SAMPLES, 3)).astype(np.float32)
    return inputs, (inputs @ np.array([[1.0], [-2.0], [0.5]], np.float32))


def build():
    model = nn.Linear(3, 1)
    rng = np.random.default_rng(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape)))
    return model


def weights(model):
    return torch.cat([p.detach().ravel() for p in model.parameters()]).numpy().copy()


def fit(
    tmp_path,
    ranks,
    rule,
    epochs=2,
    momentum=0.9,
    rate=0.02,
    batch=BATCH,
    callbacks_of=list,
    **settings,
):
    folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"

    def program(world):
        return Trainer(
            build, data(), world=world, rule=rule, epochs=epochs, loss="mse", progress="off",
            optimizer={"lr": rate, "momentum": momentum}, data={"batch_size": batch},
            run_dir=str(folder), **{"callbacks": callbacks_of(), **settings},
        ).fit()  # fmt: skip

    results = run_world(ranks, program) if ranks > 1 else [program(SoloWorld())]
    for result in results:
        assert weights(result.model).tobytes() == weights(results[0].model).tobytes()
    return results[0]


def own_loop(rule, ranks, epochs=2, momentum=0.9, begin_together=False, **settings):
    """With `begin_together` ranks wait for each other before each epoch: gossip with a rank that is
    epochs behind takes the others back."""

    def program(world):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=momentum)
        batches = paceline.shard(data(), BATCH, to=torch.from_numpy)
        with paceline.keep_pace(model, optimizer, rule=rule, **settings):
            for _ in range(epochs):
                if begin_together:
                    world.barrier()
                for x, y in batches:
                    optimizer.zero_grad()
                    nn.functional.mse_loss(model(x), y).backward()
                    optimizer.step()
        return weights(model)

    results = run_world(ranks, program)
    assert len({result.tobytes() for result in results}) == 1
    return results[0]
