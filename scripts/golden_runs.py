#!/usr/bin/env python3
"""Fingerprints of small trainings, for changes that must not alter a bit.

    python scripts/golden_runs.py > before.json
    ... change something ...
    python scripts/golden_runs.py --against before.json

Each line is a run: every synchronous rule on 1, 2 and 3 ranks (threads), on one and several nodes,
with lossy wires, resumed in mid-epoch, and a loop of one's own; with `--framework keras` or `jax`,
models of those (choose Keras' backend with KERAS_BACKEND). Bits depend on the machine and on its
libraries: compare only runs of one machine. Exits with 1 where a run differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import paceline
from paceline.comm import SoloWorld, World, run_world

SAMPLES, BATCH, EPOCHS = 92, 6, 2
RULES: dict[str, dict[str, Any]] = {
    "bsp": {"name": "bsp"},
    "average": {"name": "average", "every": 3},
    "average-epoch": {"name": "average"},
    "average-post-local": {"name": "average", "every": 2, "start_after": 4},
    "average-forget": {"name": "average", "every": 3, "keep_momentum": False},
    "diloco": {"name": "diloco", "every": 4, "outer_momentum": 0.5},
    "diloco-fragments": {"name": "diloco", "every": 4, "fragments": 2},
    "easgd": {"name": "easgd", "every": 2, "synchronous": True},
    "downpour": {"name": "downpour", "synchronous": True},
}
WIRES = ("bfloat16", "float16", "int8")
NODES = {"one": None, "each": "each", "two": "two"}


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(SAMPLES, 8)).astype(np.float32)
    return inputs, np.sin(inputs[:, :1]) + inputs[:, 1:2]


def torch_model() -> Any:
    import torch

    layers = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh()
    model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 1))
    rng = np.random.default_rng(3)  # torch's own generator is one for all threads
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape) * 0.3))
    return model


def keras_model() -> Any:
    import keras

    layers = keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((8,)), *layers])
    rng = np.random.default_rng(3)
    model.set_weights([rng.normal(size=weight.shape) * 0.3 for weight in model.get_weights()])
    return model


def jax_model() -> Any:
    import jax.numpy as jnp

    def loss(parameters: Any, inputs: Any, targets: Any) -> Any:
        outputs = jnp.tanh(inputs @ parameters["a"]) @ parameters["b"]
        return jnp.mean((outputs - targets) ** 2)

    rng = np.random.default_rng(3)
    shapes = {"a": (8, 16), "b": (16, 1)}
    return paceline.JaxModel(
        {name: jnp.asarray(rng.normal(size=s) * 0.3, "float32") for name, s in shapes.items()}, loss
    )


def as_settings(rule: dict[str, Any], exchange: dict[str, Any]) -> dict[str, Any]:
    return {"rule": rule, "exchange": exchange} if exchange else {"rule": rule}


def place(world: World, nodes: str | None) -> None:
    """Pretend that the ranks are on these nodes."""
    if nodes == "each":
        world.node_ranks = (world.rank,)
    elif nodes == "two":
        last = world.size - 1
        world.node_ranks = (last,) if world.rank == last else tuple(range(last))


def on_ranks(ranks: int, nodes: str | None, program: Callable[[World], Any]) -> list[Any]:
    def placed(world: World) -> Any:
        place(world, nodes)
        return program(world)

    return run_world(ranks, placed, timeout_s=300) if ranks > 1 else [placed(SoloWorld())]


def train(
    build: Callable[[], Any],
    ranks: int,
    rule: dict[str, Any],
    exchange: dict[str, Any],
    nodes: str | None = None,
    resumed: bool = False,
    **settings: Any,
) -> str:
    """The digest of losses and weights."""
    with tempfile.TemporaryDirectory() as folder:

        def program(world: World) -> Any:
            trainer = paceline.Trainer(
                build, data(), data(), world=world, epochs=EPOCHS, progress="off",
                data={"batch_size": BATCH}, run_dir=folder + "/run", resume="auto",
                **as_settings(rule, exchange), **settings,
            )  # fmt: skip
            if resumed:
                trainer.callbacks = [*trainer.callbacks, Interrupting()]
            try:
                result = trainer.fit()
            except paceline.errors.Interrupted:
                return None
            losses = [(r.train_loss, r.val_loss) for r in result.history]
            return losses, trainer.replica.parameters().tobytes()

        results = on_ranks(ranks, nodes, program)
        if resumed:
            assert results == [None] * ranks
            resumed = False
            results = on_ranks(ranks, nodes, program)
        return digest(results[0])


class Interrupting(paceline.Callback):
    """Ask for the end in the middle of the first epoch."""

    def on_batch_end(self, trainer: Any, step: int, logs: Any) -> None:
        if step == 3:
            trainer.interrupt()


def own_loop(ranks: int, rule: dict[str, Any], exchange: dict[str, Any], nodes: str | None) -> str:
    import torch

    def program(world: World) -> Any:
        model = torch_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        batches = paceline.shard(data(), BATCH, to=torch.from_numpy)
        losses = []
        with paceline.keep_pace(model, optimizer, **loop_settings(rule, exchange)):
            for _ in range(EPOCHS):
                for x, y in batches:
                    optimizer.zero_grad()
                    loss = torch.nn.functional.mse_loss(model(x), y)
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
        weights = torch.cat([p.detach().ravel() for p in model.parameters()]).numpy()
        return losses, weights.tobytes()

    seen = on_ranks(ranks, nodes, program)
    return digest(seen[0][1])


def loop_settings(rule: dict[str, Any], exchange: dict[str, Any]) -> dict[str, Any]:
    return {"rule": rule, "exchange": exchange} if exchange else {"rule": rule}


def digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def runs(framework: str) -> Iterator[tuple[str, Callable[[], str]]]:
    if framework != "torch":
        build = {"keras": keras_model, "jax": jax_model}[framework]
        loss = {"loss": "mse"} if framework == "keras" else {}
        for name, rule in RULES.items():
            for ranks in (1, 2, 3):
                yield (
                    f"{framework} {name} on {ranks}",
                    lambda r=rule, n=ranks: train(build, n, r, {}, optimizer={"lr": 0.02}, **loss),
                )
        return
    sgd = {"optimizer": {"name": "sgd", "lr": 0.02, "momentum": 0.9}, "loss": "mse"}
    for name, rule in RULES.items():
        for ranks in (1, 2, 3):
            for nodes in NODES if ranks > 1 else ("one",):
                yield (
                    f"{name} on {ranks}, nodes {nodes}",
                    lambda r=rule, n=ranks, at=nodes: train(
                        torch_model, n, r, {}, NODES[at], **sgd
                    ),
                )
        yield f"{name} resumed", lambda r=rule: train(torch_model, 2, r, {}, resumed=True, **sgd)
        if name in ("bsp", "average", "diloco"):
            yield f"{name} in a loop", lambda r=rule: own_loop(3, r, {}, None)
            for wire in WIRES:
                yield (
                    f"{name} by {wire}",
                    lambda r=rule, w=wire: train(torch_model, 3, r, {"wire": w}, "two", **sgd),
                )
    bsp = RULES["bsp"]
    extra = {
        "unshared": ({"share": False}, {}),
        "powersgd": ({"wire": "powersgd", "powersgd_rank": 2}, {}),
        "clipped": ({}, {"clip_norm": 0.1}),
        "accumulating": ({}, {"accumulate": 3}),
        "by adamw": ({}, {"optimizer": {"name": "adamw", "lr": 0.01}}),
        "by lbfgs-like rprop": ({}, {"optimizer": {"name": "rprop", "lr": 0.01}}),
    }
    for name, (exchange, more) in extra.items():
        for nodes in NODES:
            yield (
                f"bsp {name}, nodes {nodes}",
                lambda e=exchange, m=more, at=nodes: train(
                    torch_model, 3, bsp, e, NODES[at], **(sgd | m)
                ),
            )
    for nodes in NODES:
        yield f"bsp in a loop, nodes {nodes}", lambda at=nodes: own_loop(3, bsp, {}, NODES[at])
        yield (
            f"bsp in a loop unshared, nodes {nodes}",
            lambda at=nodes: own_loop(3, bsp, {"share": False}, NODES[at]),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--framework", choices=("torch", "keras", "jax"), default="torch")
    parser.add_argument("--against", type=Path, help="what an earlier run printed")
    args = parser.parse_args()
    before = json.loads(args.against.read_text()) if args.against else {}
    found: dict[str, str] = {}
    for name, run in runs(args.framework):
        try:
            found[name] = run()
        except paceline.errors.PacelineError as error:
            found[name] = f"{type(error).__name__}: {error}"[:60]
        if before and before.get(name) != found[name]:
            print(f"{name}: {before.get(name)} before, {found[name]} now", file=sys.stderr)
    print(json.dumps(found, indent=1))
    differing = sum(before.get(name) != value for name, value in found.items()) if before else 0
    print(f"{len(found)} runs, {differing} differ", file=sys.stderr)
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
