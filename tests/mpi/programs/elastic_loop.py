"""A loop that loses ranks. Each rank keeps a log: of each of its steps, which samples it took, and
of the end, what became of the model."""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch
from support import tiny_problem
from torch import nn

import paceline
from paceline.frameworks.torch import slice_optimizer
from paceline.testing import Fault, Inject

slice_optimizer.CHUNK_ELEMENTS = 1000  # so that a rank has several chunks to move


def build():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 200), nn.Tanh(), nn.Linear(200, 40), nn.Linear(40, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def make_data(samples):
    """The numbers of samples lie beside the targets."""
    (inputs, targets), _ = tiny_problem.make_data()
    numbers = np.arange(samples, dtype=np.float32)[:, None]
    return inputs[:samples], np.concatenate([targets[:samples], numbers], axis=1)


def mean_loss(model, inputs, targets):
    return nn.functional.mse_loss(model(inputs), targets[:, :1])


def hash_of(model):
    vector = nn.utils.parameters_to_vector(model.parameters())
    return hashlib.sha256(vector.detach().numpy().tobytes()).hexdigest()


def train(given, world, write):
    torch.set_num_threads(1)
    model, optimizer = build()
    faults = [Fault.parse(text) for text in given.get("faults", [])]
    shared = {name: given[name] for name in ("cost", "weight") if name in given}
    batches = paceline.shard(make_data(given["samples"]), 5, to=torch.from_numpy, **shared)
    validation = paceline.shard(make_data(20), 5, to=torch.from_numpy)
    hooked = given.get("hooked")
    if hooked:  # then torch's own step is called, too
        optimizer.register_step_post_hook(lambda *_: None)
    settings = {name: given[name] for name in ("exchange", "clip_norm", "elastic") if name in given}
    every, had = given.get("accumulate", 1), []
    with paceline.keep_pace(model, optimizer, given["rule"], **settings) as pace:
        Inject(*faults).attach(pace)

        def step(epoch):
            begun = {"epoch": epoch, "rank": pace.world.rank, "samples": had.copy()}
            write({"begun": True, **begun})
            optimizer.step()
            optimizer.zero_grad()
            world, rounds = pace.world.generation_number, pace._exchange.rounds
            write({"done": True, "world": world, "rounds": rounds, **begun})
            had.clear()
            if given.get("checks"):
                pace.check()

        for epoch in range(given["epochs"]):
            optimizer.zero_grad()
            for number, (inputs, targets) in enumerate(batches, 1):
                had += targets[:, 1].int().tolist()
                mean_loss(model, inputs, targets).backward()
                if number % every == 0:
                    step(epoch)
                if given.get("breaks") == number:
                    break
            if had:
                step(epoch)
            if given.get("validates"):
                write({"validated": sum(len(targets) for _, targets in validation)})
            if pace._exchange.replicas_stay_equal:
                pace.check()
    write({"end": hash_of(model), "size": paceline.init().size, "steps": pace.progress()[1]})


def main():
    given = json.loads(sys.argv[1])
    world = paceline.init()
    with (Path(given["folder"]) / f"{world.rank}.log").open("w", buffering=1) as log:
        train(given, world, lambda entry: print(json.dumps(entry), file=log))


if __name__ == "__main__":
    main()
