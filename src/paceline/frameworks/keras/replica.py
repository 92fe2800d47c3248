"""The Replica of Keras 3, on the torch, TensorFlow or JAX backend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np

from paceline.core.nests import leaves, map_leaves
from paceline.errors import ConfigError, DataError, ReplicaError
from paceline.frameworks.keras.inputs import Intake
from paceline.frameworks.keras.losses import (
    arrange_targets,
    check_labels,
    count_correct,
    resolve_loss,
    shorten,
)
from paceline.frameworks.keras.metrics import Metrics
from paceline.frameworks.keras.optimizers import (
    check_optimizer,
    describe_optimizer,
    has_schedule,
    make_optimizer,
    pack_state,
    reset_state,
    unpack_state,
)
from paceline.frameworks.keras.vectors import KerasVectors, is_seed
from paceline.frameworks.replica import BatchLike

_log = logging.getLogger("paceline.frameworks")

OptimizerSpec: TypeAlias = Mapping[str, Any] | Callable[..., Any] | None
"""Name and settings, or a function of the variables; None for the compiled model's own."""

_SAMPLE = 4
"""Samples to run through the model before the first step, to see its outputs."""


class KerasReplica(KerasVectors):
    """A Keras model that trains as one of many replicas.

    A compiled model keeps its own loss, loss weights, metrics and optimizer where `loss` and
    `optimizer` are None; metrics are always its own.
    """

    def __init__(self, model: Any, loss: Any = None, optimizer: OptimizerSpec = None) -> None:
        super().__init__(model)
        _check_model(model)
        if not model.compiled and (loss is None or optimizer is None):
            raise ReplicaError("the model is not compiled; name a loss and an optimizer")
        self.optimizer = (
            model.optimizer if optimizer is None else make_optimizer(optimizer, self._trained)
        )
        check_optimizer(self.optimizer, self._trained)
        self._loss_spec = loss
        self._base_rate, self._factor = self.learning_rate, 1.0
        self._set_rate = self._base_rate
        self._intake = Intake(model)
        kept = [name for name, spec in (("loss", loss), ("optimizer", optimizer)) if spec is None]
        words = f"; {' and '.join(kept)} as the model was compiled" if kept else ""
        _log.info("Keras %s on %s%s", keras.__version__, keras.backend.backend(), words)
        self._engine: Any = None
        self._metrics: Metrics

    @property
    def learning_rate(self) -> float:
        return float(np.asarray(keras.ops.convert_to_numpy(self.optimizer.learning_rate)))

    def scale_learning_rate(self, factor: float) -> None:
        """A rate that a callback has set since is the base from now on."""
        if has_schedule(self.optimizer):
            if factor != 1.0:
                raise ConfigError(
                    "the optimizer has its own learning rate schedule; omit `schedule`"
                )
            return
        rate = self.learning_rate
        if rate != self._set_rate:
            self._base_rate = rate / self._factor if self._factor else rate
        elif factor == self._factor:
            return
        self._factor = factor
        self.optimizer.learning_rate = self._base_rate * factor
        self._set_rate = self.learning_rate

    def gradients(self, batch: BatchLike, weight: float = 1.0, add: bool = False) -> float:
        inputs, targets = self._take(batch)
        loss, gradients = self._engine.gradients(inputs, targets)
        self.keep_gradients(gradients, weight, add)
        return float(loss)

    def apply(self) -> None:
        held = self.held_gradients()
        if any(gradient is not None for gradient in held):
            self._engine.apply(held)

    def evaluate(self, batch: BatchLike) -> dict[str, Any]:
        """Includes what the batch adds to the states of the model's metrics, for `figures`."""
        inputs, targets = self._take(batch)
        outputs, loss, states = self._engine.evaluate(inputs, targets)
        if self._metrics.unsure and batch.samples > 1:
            pieces = [shorten(inputs, 2), shorten(targets, 2)]
            self._try_metrics(*pieces)
        sums: dict[str, Any] = {"loss": loss * batch.samples, "samples": float(batch.samples)}
        counts = count_correct(self.model.loss, outputs, self._arranged(batch))
        return sums | counts | self._metrics.sums(states)

    def figures(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """The model's own metrics, from the sums of what `evaluate` returned."""
        return {} if self._engine is None else self._metrics.figures(sums)

    def reset_optimizer(self) -> None:
        reset_state(self.optimizer, self._trained)

    def describe_optimizer(self) -> str:
        return describe_optimizer(self.optimizer)

    def optimizer_state(self) -> dict[str, Any]:
        rates = {"rate": self.learning_rate, "base": self._base_rate, "factor": self._factor}
        return {"state": pack_state(self.optimizer), "groups": rates}

    def accept_optimizer_state(self, state: dict[str, Any]) -> None:
        """Without `groups` the learning rate stays what it is now."""
        unpack_state(self.optimizer, state["state"])
        rates = state.get("groups")
        if rates is not None and not has_schedule(self.optimizer):
            self.optimizer.learning_rate = rates["rate"]
            self._base_rate, self._factor = rates["base"], rates["factor"]
            self._set_rate = self.learning_rate

    def save(self, path: Path) -> Path:
        """Write model.keras, or the variables by name if Keras cannot write the model."""
        from paceline.frameworks.keras.saving import save_model

        return save_model(self.model, path)

    def locate_state(self) -> dict[str, Any]:
        """Where each variable lies, and the architecture, to build a model from a checkpoint."""
        from paceline.frameworks.keras.saving import describe_architecture

        return {
            "framework": "keras",
            "rows": [row for row in self.locate_variables() if not is_seed(self._named[row[1]])],
            "architecture": describe_architecture(self.model),
        }

    def _take(self, batch: BatchLike) -> tuple[Any, Any]:
        """Inputs and targets as tensors; the first batch determines the model's loss."""
        inputs = self._intake.inputs(batch.inputs)
        try:
            if self._engine is None:
                self._get_ready(inputs, batch)
        except (TypeError, ValueError, RuntimeError) as error:
            shapes = [tuple(leaf.shape) for leaf in leaves(inputs) if hasattr(leaf, "shape")]
            error.add_note(f"paceline: the model was given inputs of shape {shapes}")
            raise
        targets = self._arranged(batch)
        check_labels(self.model.loss, self._example, targets, batch)
        return inputs, self._intake.target_tensors(targets)

    def _arranged(self, batch: BatchLike) -> Any:
        targets = self._intake.targets(batch.targets)
        if targets is None and self.model.loss is not None:
            raise DataError(
                "the data has no targets, and the loss needs them; set data.keys, or give "
                "x.npy,y.npy or (x, y)"
            )
        return arrange_targets(targets, self.model, self._example)

    def _get_ready(self, inputs: Any, batch: BatchLike) -> None:
        """Compile the model with the loss that fits, let losses and metrics make their variables,
        and prepare the backend's functions."""
        model, seen = self.model, shorten(inputs, _SAMPLE)
        self._example = model(seen, training=False)
        targets = arrange_targets(
            shorten(self._intake.targets(batch.targets), _SAMPLE), model, self._example
        )
        if self._loss_spec is not None or self.optimizer is not model.optimizer:
            _compile(model, self.optimizer, self._loss_spec, self._example, targets)
        if model.loss is not None or model.losses:
            tensors = self._intake.target_tensors(targets)
            check_labels(model.loss, self._example, targets, batch)
            model._symbolic_build(data_batch=(seen, tensors, None))
        model.reset_metrics()
        self._metrics = Metrics(model)
        self._engine = _find_engine()(model, self.optimizer, self._trained)

    def _try_metrics(self, inputs: Any, targets: Any) -> None:
        evaluate = self._engine.evaluate
        first = shorten(inputs, 1), shorten(targets, 1)
        second = _after_first(inputs), _after_first(targets)
        whole, *parts = (evaluate(*some)[2] for some in ((inputs, targets), first, second))
        self._metrics.try_out(whole, parts)


def _find_engine() -> Any:
    """The engine of the backend that Keras runs on."""
    backend = keras.backend.backend()
    if backend == "torch":
        from paceline.frameworks.keras.engines.torch import TorchEngine

        return TorchEngine
    if backend == "jax":
        from paceline.frameworks.keras.engines.jax import JaxEngine

        return JaxEngine
    if backend == "tensorflow":
        from paceline.frameworks.keras.engines.tensorflow import TensorflowEngine

        return TensorflowEngine
    raise ReplicaError(
        f"Keras runs on {backend}, which is not supported; set KERAS_BACKEND to torch, jax or "
        "tensorflow"
    )


def _after_first(value: Any) -> Any:
    return map_leaves(lambda leaf: None if leaf is None else leaf[1:], value)


def _compile(model: Any, optimizer: Any, spec: Any, outputs: Any, targets: Any) -> None:
    """Compile it again, with its former settings where no other is given."""
    before = vars(model).get("_compile_loss") if model.compiled else None
    weights = getattr(before, "_user_loss_weights", None)
    metrics = vars(model).get("_compile_metrics") if model.compiled else None
    loss = model.loss if spec is None else resolve_loss(spec, model, outputs, targets)
    model.compile(
        optimizer=optimizer,
        loss=loss,
        loss_weights=weights if spec is None else None,
        metrics=getattr(metrics, "_user_metrics", None),
        weighted_metrics=getattr(metrics, "_user_weighted_metrics", None),
        auto_scale_loss=False,
    )


def _check_model(model: Any) -> None:
    base = keras.Model
    for name in ("train_step", "test_step"):
        if getattr(type(model), name) is not getattr(base, name):
            raise ReplicaError(
                f"{type(model).__name__} has its own {name}, which is not called here; put "
                "the loss into compute_loss, or train with model.fit and paceline.keras.KeepPace"
            )
