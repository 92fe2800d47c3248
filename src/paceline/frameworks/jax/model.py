"""JaxModel, and how its functions are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.errors import ConfigError, ReplicaError

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    raise ConfigError(f"JAX is not installed here ({error}); pip install 'paceline[jax]'") from None

_EXTRAS = ("state", "key", "training")


@dataclass(eq=False)
class JaxModel:
    """A JAX model for Paceline: parameters, a loss, and an optimizer.

    `params` is any pytree of float arrays, and `loss_fn(params, inputs, targets)` the mean loss of
    a batch. It may take these further arguments, by name:

    - `key`: a random key, another one in each step and on each rank; None in validation;
    - `training`: False in validation;
    - `state`: what the model keeps beside its parameters (BatchNorm statistics), any pytree; then
      it returns `(loss, new_state)`.

    `optimizer` is one of optax; without it the run's setting `optimizer` names one.
    `predict(params, inputs)` gives a score for each class, for `val_accuracy`; it may take `state`,
    too. After training, `params` and `state` hold the result.
    """

    params: Any
    loss_fn: Callable[..., Any]
    optimizer: Any = None
    state: Any = None
    predict: Callable[..., Any] | None = None

    @property
    def brings(self) -> tuple[str, ...]:
        """The settings of a run that the model itself provides."""
        return ("loss",) if self.optimizer is None else ("loss", "optimizer")


class Functions:
    """The functions of a model, called with the arguments that they take; all can be traced."""

    def __init__(self, model: JaxModel) -> None:
        self._model = model
        self._wanted = _extras(model.loss_fn)
        self.draws = "key" in self._wanted
        self._structure = jax.tree_util.tree_structure(model.state)
        if model.state is not None and "state" not in self._wanted:
            raise ReplicaError(
                "the JaxModel has a state, and its loss_fn does not take it; write "
                "loss_fn(params, inputs, targets, state) and return (loss, new_state)"
            )

    def loss(self, params: Any, state: Any, inputs: Any, targets: Any, key: Any = None) -> Any:
        """The mean loss and the new state; without a key it is an evaluation."""
        training = key is not None
        fresh = jax.tree.map(
            lambda leaf: leaf, state
        )  # Flax writes only to what was made inside the trace
        given = {"state": fresh, "key": key if self.draws else None, "training": training}
        wanted = {name: given[name] for name in self._wanted}
        found = self._model.loss_fn(params, _scaled(inputs), targets, **wanted)
        loss, new = found if isinstance(found, tuple) else (found, state)
        if jnp.shape(loss) != ():
            raise ReplicaError(
                f"loss_fn gives an array of shape {jnp.shape(loss)}, expected one number: the mean "
                "over the batch"
            )
        return loss, state if self._model.state is None else self._fit(new, state)

    def count_correct(self, params: Any, state: Any, inputs: Any, targets: Any) -> Any:
        """How many predictions are right, and of how many; zeros without `predict`."""
        predict = self._model.predict
        if predict is None or targets is None or not jnp.issubdtype(targets.dtype, jnp.integer):
            return 0, 0
        extras = {"state": state} if "state" in _extras(predict) else {}
        found = jnp.argmax(predict(params, _scaled(inputs), **extras), axis=-1)
        if targets.shape == (*found.shape, 1):
            targets = targets[..., 0]
        if targets.shape != found.shape:
            raise ReplicaError(
                f"predict gives classes of shape {found.shape} for targets of {targets.shape}; it "
                "should give one score for each class along the last axis"
            )
        return (found == targets).sum(), found.size

    def _fit(self, new: Any, old: Any) -> Any:
        """The new state in the types of the old one."""
        shapes = [jax.tree.map(jnp.shape, tree) for tree in (new, old)]
        if jax.tree_util.tree_structure(new) != self._structure or shapes[0] != shapes[1]:
            raise ReplicaError(
                "the state that loss_fn returns is not like JaxModel.state: it has the shapes "
                f"{shapes[0]}, expected {shapes[1]}"
            )
        return jax.tree.map(lambda leaf, before: leaf.astype(before.dtype), new, old)


def _extras(function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters
    return tuple(name for name in _EXTRAS if name in parameters)


def _scaled(inputs: Any) -> Any:
    """Bytes are pixels, scaled to 0..1, as for every other framework."""
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) / 255 if leaf.dtype == jnp.uint8 else leaf, inputs
    )
