"""A Flax NNX network with BatchNorm and dropout, trained with JAX and optax.

paceline run -n 2 -- examples/jax_flax.py

Needs: pip install 'paceline[jax]' flax
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import paceline
from paceline.data import digits


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(784, 128, rngs=rngs)
        self.norm = nnx.BatchNorm(128, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(0.2)
        self.second = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        hidden = nnx.relu(self.norm(self.first(images.reshape(len(images), -1))))
        return self.second(self.drop(hidden, rngs=nnx.Rngs(key) if key is not None else None))


def build() -> paceline.JaxModel:
    graph, params, statistics = nnx.split(Network(nnx.Rngs(1)), nnx.Param, ...)

    def loss_fn(params, images, labels, state, key, training):
        network = nnx.merge(graph, params, state)
        network.set_attributes(use_running_average=not training, deterministic=not training)
        scores = network(images, key)
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()
        return loss, nnx.state(network, nnx.BatchStat)

    def predict(params, images, state):
        network = nnx.merge(graph, params, state)
        network.eval()
        return network(images)

    optimizer = optax.adam(2e-3)
    return paceline.JaxModel(params, loss_fn, optimizer, statistics, predict)


if __name__ == "__main__":
    train, validation = digits.load("train"), digits.load("validation")
    result = paceline.Trainer(build, train, validation, epochs=5, data={"batch_size": 32}).fit()
    if paceline.init().rank == 0:
        size = sum(leaf.size for leaf in jax.tree.leaves(result.model.params))
        mean = jnp.abs(result.model.state["norm"]["mean"].get_value()).mean()
        print(f"{size} parameters; the statistics moved by {mean:.2f}")
        print(f"val accuracy {result.summary['val_accuracy']:.4f}")
