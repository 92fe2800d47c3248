"""Keras on JAX: gradients, steps and evaluation as compiled pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import keras
import numpy as np

from paceline.core.vectors import Vector


class JaxEngine:
    """Passes the variables' values to pure functions, and assigns what they return."""

    def __init__(self, model: Any, optimizer: Any, trained: Sequence[Any]) -> None:
        self._model, self._optimizer, self._trained = model, optimizer, list(trained)
        own = {id(variable) for variable in trained}
        self._rest = [variable for variable in model.variables if id(variable) not in own]
        weights = {id(v) for layer in model._flatten_layers() for v in layer._trainable_variables}
        self._moving = [variable for variable in self._rest if id(variable) not in weights]
        differentiate = jax.value_and_grad(self._run_backward, has_aux=True)
        self._differentiate = jax.jit(differentiate)
        self._evaluate = jax.jit(self._run_forward)
        self._step = jax.jit(self._run_step)

    def gradients(self, inputs: Any, targets: Any) -> tuple[float, list[Vector | None]]:
        """The mean loss, and its gradient for each trained variable; None for a loss that is not
        finite. Seeds and statistics advance."""
        (loss, moved), found = self._differentiate(
            _values(self._trained), _values(self._rest), inputs, targets
        )
        value = float(loss)
        _put_back(self._moving, moved)
        if not math.isfinite(value):
            return value, [None] * len(self._trained)
        return value, [np.asarray(gradient) for gradient in found]

    def _run_backward(
        self, trained: list[Any], rest: list[Any], inputs: Any, targets: Any
    ) -> tuple[Any, list[Any]]:
        mapping = [*zip(self._trained, trained, strict=True), *zip(self._rest, rest, strict=True)]
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            outputs = self._model(inputs, training=True)
            loss = self._model.compute_loss(x=inputs, y=targets, y_pred=outputs, training=True)
        return loss, _current(scope, self._moving)

    def apply(self, gradients: Sequence[Vector | None]) -> None:
        """One step of the optimizer; JAX has a gradient for every variable."""
        given = [
            np.zeros(tuple(v.shape), np.float32) if g is None else g
            for g, v in zip(gradients, self._trained, strict=True)
        ]
        state = self._optimizer.variables
        trained, kept = self._step(_values(self._trained), _values(state), given)
        jax.block_until_ready((trained, kept))  # it reads the gradients in place
        _put_back(self._trained, trained)
        _put_back(state, kept)

    def _run_step(
        self, trained: list[Any], state: list[Any], gradients: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        typed = [g.astype(value.dtype) for g, value in zip(gradients, trained, strict=True)]
        after: tuple[list[Any], list[Any]] = self._optimizer.stateless_apply(state, typed, trained)
        return after

    def evaluate(self, inputs: Any, targets: Any) -> tuple[Any, float, list[Vector]]:
        """Outputs, mean loss, and what the batch adds to the state of the model's metrics."""
        outputs, loss, states = self._evaluate(
            _values(self._trained), _values(self._rest), inputs, targets
        )
        return (
            keras.tree.map_structure(np.asarray, outputs),
            float(loss),
            [np.array(state) for state in states],
        )

    def _run_forward(
        self, trained: list[Any], rest: list[Any], inputs: Any, targets: Any
    ) -> tuple[Any, Any, list[Any]]:
        model, counted = self._model, self._model.metrics_variables
        mapping = [*zip(self._trained, trained, strict=True), *zip(self._rest, rest, strict=True)]
        mapping += [(v, jax.numpy.zeros(v.shape, v.dtype)) for v in counted]
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            outputs = model(inputs, training=False)
            loss = model.compute_loss(x=inputs, y=targets, y_pred=outputs, training=False)
            model.compute_metrics(x=inputs, y=targets, y_pred=outputs, sample_weight=None)
        return outputs, loss, _current(scope, counted)


def _values(variables: Sequence[Any]) -> list[Any]:
    return [variable.value for variable in variables]


def _current(scope: Any, variables: Sequence[Any]) -> list[Any]:
    """The value of each after the call; unchanged if the call did not set it."""
    found = ((variable, scope.get_current_value(variable)) for variable in variables)
    return [variable.value if value is None else value for variable, value in found]


def _put_back(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
