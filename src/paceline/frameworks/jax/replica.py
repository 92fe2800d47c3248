"""The Replica of JAX: a pytree of parameters, a loss function and an optimizer of optax.

Parameters and gradients are one flat vector each, also for JAX: it computes from an array on the
vector's own memory, splits it inside the compiled function, and returns one flat gradient. So no
array is copied on the way in, and one on the way out.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.core.nests import leaves, map_leaves
from paceline.core.vectors import Vector, checksum
from paceline.errors import CheckpointError, DataError, ReplicaError
from paceline.frameworks.jax.model import Functions, JaxModel
from paceline.frameworks.jax.optimizers import make_optimizer
from paceline.frameworks.jax.state import JaxState
from paceline.frameworks.jax.trees import TreeLayout, alias, from_plain, named_leaves, to_plain
from paceline.frameworks.replica import BatchLike
from paceline.frameworks.vector_replica import VectorReplica

__all__ = ["JaxLoop", "JaxModel", "JaxReplica"]


class JaxReplica(VectorReplica):
    """A JaxModel that trains as one of many replicas."""

    def __init__(self, model: JaxModel, loss: Any, optimizer: Any) -> None:
        """The loss is the model's own; a setting for it was refused before."""
        self.module = model
        self._tree = TreeLayout.of(model.params, "parameter")
        if not self._tree.layout.size:
            raise ReplicaError("the JaxModel has no parameters: its pytree is empty")
        self._state = JaxState(model.state)
        self._functions = Functions(model)
        self._optimizer = make_optimizer(model.optimizer, optimizer, model.params)
        self._factor = 1.0
        self._kept: Any = None
        self._compute = jax.jit(self._compute_traced)
        self._update = jax.jit(self._update_traced)
        self._evaluate = jax.jit(self._evaluate_traced)
        arrays = [np.asarray(jnp.asarray(leaf)) for _, leaf in named_leaves(model.params)]
        super().__init__(self._tree.layout, arrays)
        self._buffer_vector, self._constant_bytes = self._state.buffers, self._state.constants
        self.reset_optimizer()

    def rehome(self, parameters: Vector, gradients: Vector) -> None:
        super().rehome(parameters, gradients)
        self._alias, self._gradient_alias = alias(parameters), alias(gradients)

    def release(self) -> None:
        super().release()
        self.module.params = jax.tree.map(jnp.array, self._tree.cut(jnp.array(self._vector)))
        self.module.state = self._state.tree

    @property
    def learning_rate(self) -> float:
        """The rate of an optimizer that the model brings is unknown: then this is the factor."""
        return self._factor * (1.0 if self._optimizer.rate is None else self._optimizer.rate)

    def scale_learning_rate(self, factor: float) -> None:
        self._factor = factor

    def gradients(self, batch: BatchLike, weight: float = 1.0, add: bool = False) -> float:
        # From numpy's generator: each rank has its own, and checkpoints hold its state.
        seed = np.random.randint(2**32, dtype=np.uint32) if self._functions.draws else 0
        loss, state, gradient = self._call(self._compute, batch, np.uint32(seed))
        value = float(loss)
        if not math.isfinite(value):  # then gradients and state are not finite either
            return value
        self._state.tree = state
        if add:
            self._gradient += np.multiply(gradient, weight, dtype=self.layout.dtype)
        else:
            np.multiply(gradient, weight, out=self._gradient)
        return value

    def apply(self) -> None:
        gradient = self._gradient if self._gradient_alias is None else self._gradient_alias
        new, self._kept = jax.block_until_ready(
            self._update(self._flat(), gradient, self._kept, np.float32(self._factor))
        )
        self._vector[:] = new

    def evaluate(self, batch: BatchLike) -> dict[str, float]:
        loss, correct, counted = self._call(self._evaluate, batch)
        sums = {"loss": float(loss) * batch.samples, "samples": float(batch.samples)}
        if self.module.predict is not None:
            sums |= {"correct": float(correct), "counted": float(counted)}
        return sums

    def accept_buffers(self) -> None:
        self._state.accept_buffers()

    def accept_constants(self) -> None:
        self._state.accept_constants()

    def buffers(self) -> Vector:
        return self._state.collect_buffers()

    def constants(self) -> Vector:
        return self._state.collect_constants()

    def reset_optimizer(self) -> None:
        params = self._tree.cut(jnp.array(self._vector), as_they_were=False)
        self._kept = self._optimizer.transformation.init(params)

    def describe_optimizer(self) -> str:
        kept = [to_plain(leaf) for _, leaf in named_leaves(self._kept)]
        held = checksum(*(array for array in kept if array.size))
        return f"{self._optimizer.label} with state {held:08x}"

    def optimizer_state(self) -> dict[str, Any]:
        return {"kept": {name: to_plain(leaf) for name, leaf in named_leaves(self._kept)}}

    def accept_optimizer_state(self, state: dict[str, Any]) -> None:
        saved, now = state["kept"], dict(named_leaves(self._kept))
        differing = sorted(set(saved) ^ set(now))
        if differing:
            raise CheckpointError(
                f"the checkpoint's optimizer is another one: '{differing[0]}' is only in one of "
                "both; resume with the optimizer that the run had"
            )
        fresh = [from_plain(saved[name], leaf) for name, leaf in now.items()]
        structure = jax.tree_util.tree_structure(self._kept)
        self._kept = jax.tree_util.tree_unflatten(structure, fresh)

    def save(self, path: Path) -> Path:
        """Write model.safetensors: each leaf of the parameters by its path, and `state.` with its
        path for those of the state."""
        from safetensors.numpy import save_file

        arrays = dict(self._state.plain_arrays())
        for entry, view in zip(self.layout.entries, self.layout.views(self._vector), strict=True):
            known = entry.dtype in ("float16", "float32", "float64")
            arrays[entry.name] = np.array(view, entry.dtype if known else view.dtype, order="C")
        path = path.with_suffix(".safetensors")
        save_file(arrays, str(path), metadata={"format": "np"})
        path.chmod(0o644)  # safetensors makes it readable for its owner alone
        return path

    def _flat(self) -> Any:
        return jax.device_put(self._vector) if self._alias is None else self._alias

    def _call(self, function: Any, batch: BatchLike, *more: Any) -> Any:
        """Call it and wait for the results: only then may the vectors be written to."""
        inputs, targets = map_leaves(_array, batch.inputs), map_leaves(_array, batch.targets)
        try:
            found = function(self._flat(), self._state.tree, inputs, targets, *more)
        except (TypeError, ValueError) as error:
            shapes = [leaf.shape for leaf in leaves(inputs)]
            error.add_note(f"paceline: the model was given inputs of shape {shapes}")
            raise
        return jax.block_until_ready(found)

    def _compute_traced(self, flat: Any, state: Any, inputs: Any, targets: Any, seed: Any) -> Any:
        def loss_of(flat: Any) -> Any:
            key = jax.random.key(seed)
            return self._functions.loss(self._tree.cut(flat), state, inputs, targets, key)

        (loss, new), gradient = jax.value_and_grad(loss_of, has_aux=True)(flat)
        return loss, new, gradient

    def _update_traced(self, flat: Any, gradient: Any, kept: Any, factor: Any) -> Any:
        params = self._tree.cut(flat, as_they_were=False)
        updates = self._tree.cut(gradient, as_they_were=False)
        updates, kept = self._optimizer.transformation.update(updates, kept, params)
        return flat + self._tree.join(updates) * factor.astype(flat.dtype), kept

    def _evaluate_traced(self, flat: Any, state: Any, inputs: Any, targets: Any) -> Any:
        params = self._tree.cut(flat)
        loss, _ = self._functions.loss(params, state, inputs, targets)
        return loss, *self._functions.count_correct(params, state, inputs, targets)


class JaxLoop:
    """Not supported: JAX has no optimizer.step() to hook."""

    def __init__(self, model: JaxModel, optimizer: Any) -> None:
        raise ReplicaError(
            "keep_pace exchanges when optimizer.step() is called, which loops of JAX do not do; "
            "give the JaxModel to paceline.Trainer, with a Callback for what else your loop does"
        )


def _array(leaf: Any) -> Any:
    if leaf is None:
        return None
    array = np.asarray(leaf)
    if array.dtype.kind not in "biufc":
        raise DataError(f"arrays of {array.dtype} cannot be trained on; make them numbers")
    return array
