"""A Keras model that you train by `fit`, or in a loop of your own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras

from paceline.core.vectors import Vector
from paceline.errors import ReplicaError, TrainingError
from paceline.frameworks.keras.compiled_calls import (
    Swap,
    count_samples,
    is_compiling,
    swap_gradients,
)
from paceline.frameworks.keras.optimizers import (
    describe_optimizer,
    pack_state,
    reset_state,
    unpack_state,
)
from paceline.frameworks.keras.vectors import KerasVectors, read
from paceline.frameworks.replica import BeforeStep


class KerasLoop(KerasVectors):
    """The model as vectors, and a hook on its optimizer.

    With the JAX backend `fit` keeps weights outside of the model during an epoch; they are brought
    back before they are read.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise ReplicaError(
                f"the model's optimizer is {optimizer!r}, expected one of Keras; call "
                "model.compile(optimizer=..., loss=...) first"
            )
        super().__init__(model)
        self.optimizer = optimizer
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        self._samples: Any = 1.0
        self._found = vars(optimizer).get("apply")
        self._plain_apply = getattr(optimizer.apply, "plain", optimizer.apply)

    def parameters(self) -> Vector:
        self._fetch()
        return super().parameters()

    def buffers(self) -> Vector:
        self._fetch()
        return super().buffers()

    def constants(self) -> Vector:
        self._fetch()
        return super().constants()

    def _fetch(self) -> None:
        """Bring back what JAX keeps outside of the model."""
        sync = getattr(self.model, "jax_state_sync", None)
        if sync is not None:
            sync()

    @property
    def is_attached(self) -> bool:
        """Whether the model has its weights and its optimizer's state now; with JAX, `fit` may
        keep them outside."""
        return bool(getattr(self.model, "_jax_state_synced", True))

    @property
    def averages_already(self) -> bool:
        """Whether `around_apply` has hooked the optimizer."""
        return self._found is not None and hasattr(self._found, "plain")

    @property
    def scales_loss(self) -> bool:
        """Whether the optimizer itself handles gradients that are not finite."""
        return isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)

    def samples_seen(self) -> float | None:
        """Samples since the model's metrics were reset: by an epoch, or a validation.

        None if the model counts none, as with a custom train_step.
        """
        tracker = getattr(self.model, "_loss_tracker", None)
        if tracker is None:
            return None
        count, state = tracker.count, getattr(self.model, "_jax_state", None)
        if state and not self.model._jax_state_synced:
            at = next(i for i, v in enumerate(self.model.metrics_variables) if v is count)
            return float(state["metrics_variables"][at])
        return float(read(count)) or None

    def around_gradients(self, average: Callable[[float], None]) -> Callable[[], None]:
        """Call `average` in every step of the optimizer inside `fit`, with the number of samples,
        when the gradients are in the vector; the step then uses what the vector holds.

        Returns a function to end that.
        """
        model, plain = self.model, self.model.compute_loss

        def compute_loss(*inputs: Any, **named: Any) -> Any:
            self._samples = count_samples(inputs[0] if inputs else named["x"])
            return plain(*inputs, **named)

        def apply(gradients: Sequence[Any], trainable_variables: Any = None) -> None:
            order = self._find_places(trainable_variables)
            swap = partial(self._swap, order, average)
            averaged = swap_gradients(swap, list(gradients), self._samples)
            self._plain_apply(averaged, *_unless_none(trainable_variables))

        vars(model)["compute_loss"] = compute_loss
        vars(self.optimizer)["apply"] = apply
        jit = model.jit_compile
        model.jit_compile = (
            jit and keras.backend.backend() == "jax"
        )  # the others cannot call Python
        model.make_train_function(force=True)

        def end() -> None:
            del vars(model)["compute_loss"]
            self._unhook()
            model.jit_compile, model.train_function = jit, None

        return end

    def around_step(
        self,
        before: BeforeStep,
        after: Callable[[], None],
        instead: Callable[[], bool] = lambda: False,
    ) -> Callable[[], None]:
        """Call these whenever the loop calls `optimizer.apply`; returns a function to end that."""

        def apply(gradients: Sequence[Any], trainable_variables: Any = None) -> None:
            gradients = list(gradients)
            if is_compiling(gradients):
                raise TrainingError(
                    "optimizer.apply is called inside tf.function or jax.jit, where keep_pace "
                    "cannot exchange; call it outside, or use model.fit with paceline.keras"
                )
            swap = partial(self._swap, self._find_places(trainable_variables), lambda _: before())
            averaged = swap_gradients(swap, gradients, 1.0)
            self._plain_apply(averaged, *_unless_none(trainable_variables))
            after()

        vars(self.optimizer)["apply"] = apply
        return self._unhook

    def _unhook(self) -> None:
        del vars(self.optimizer)["apply"]
        if self._found is not None:
            vars(self.optimizer)["apply"] = self._found

    def _find_places(self, variables: Sequence[Any] | None) -> list[int]:
        """The index among our trained variables of each of the optimizer's."""
        given = self.optimizer._trainable_variables if variables is None else list(variables)
        places = {id(variable): at for at, variable in enumerate(self._trained)}
        order = [places.get(id(variable), -1) for variable in given]
        if sorted(order) != list(range(len(self._trained))):
            raise TrainingError(
                f"the optimizer steps on {len(order)} variables, and the model trains "
                f"{len(self._trained)}; one optimizer must step on all of them at once"
            )
        return order

    def _swap(
        self,
        order: list[int],
        average: Callable[[float], object],
        gradients: list[Vector | None],
        samples: float,
    ) -> list[Vector | None]:
        ours: list[Vector | None] = [None] * len(order)
        for at, gradient in zip(order, gradients, strict=True):
            ours[at] = gradient
        self.keep_gradients(ours)
        average(samples)
        held, zeros = self.held_gradients(), self._gradient_views
        # Gradients that all ranks have rejected are zeros; a compiled step needs some.
        return [
            zeros[at] if held[at] is None and gradient is not None else held[at]
            for at, gradient in zip(order, gradients, strict=True)
        ]

    def apply(self) -> None:
        """A step that `fit` did not take, with the gradients held."""
        self._fetch()
        held = [
            g if g is None else keras.ops.convert_to_tensor(g.copy()) for g in self.held_gradients()
        ]
        if keras.backend.backend() == "torch":
            import torch

            with torch.no_grad():
                self._plain_apply(held, self._trained)
        else:
            self._plain_apply(held, self._trained)

    def reset_optimizer(self) -> None:
        self._fetch()
        reset_state(self.optimizer, self._trained)

    def describe_optimizer(self) -> str:
        self._fetch()
        return describe_optimizer(self.optimizer)

    def optimizer_state(self) -> dict[str, Vector]:
        """Momenta and the like, as copies."""
        self._fetch()
        return pack_state(self.optimizer)

    def accept_optimizer_state(self, state: dict[str, Vector]) -> None:
        unpack_state(self.optimizer, state)


def around_apply(optimizer: Any, swap: Swap) -> None:
    """Let every step of the optimizer use the gradients that `swap` returns for its own."""
    plain = getattr(optimizer.apply, "plain", optimizer.apply)

    def apply(gradients: Sequence[Any], trainable_variables: Any = None) -> None:
        swapped = swap_gradients(swap, list(gradients), 1.0)
        plain(swapped, *_unless_none(trainable_variables))

    vars(apply)["plain"] = plain
    vars(optimizer)["apply"] = apply


def _unless_none(value: Any) -> tuple[Any, ...]:
    return () if value is None else (value,)
