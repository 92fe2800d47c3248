"""A Keras model's variables as flat vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from paceline.core.vectors import Layout, Vector
from paceline.errors import ReplicaError
from paceline.frameworks.keras.variable_names import name_variables
from paceline.frameworks.vector_replica import VectorReplica

_SEEDS = "seed_generator_state"
_KEY_BITS = 30
"""Of Keras' own seeds."""


class KerasVectors(VectorReplica):
    """The model's variables: those that train, untrained float state, and the rest.

    With the torch backend trained variables lie on the flat vector itself; with others they are
    copied out by `parameters` and back by `accept_parameters`. Gradients always lie in a flat
    vector. Frozen weights, counters and seeds are constants: they are made equal at the start and
    never sent again. `reseed` makes the seeds of dropout differ from rank to rank.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        if not model.built:
            raise ReplicaError(
                "the Keras model has no variables yet; begin it with keras.Input(shape), or call "
                "it once on a batch"
            )
        self._variables = list({id(v): v for v in model.variables}.values())  # shared ones once
        self._names = name_variables(model, self._variables)
        named = list(zip(self._names, self._variables, strict=True))
        self._named = dict(named)
        trained = {id(variable) for variable in model.trainable_variables}
        untrained = _untrained_state(model) - trained
        self._trained = [v for v in self._variables if id(v) in trained]
        self._buffers = [v for v in self._variables if id(v) in untrained]
        held = trained | untrained
        self._constants = [v for v in self._variables if id(v) not in held]
        _check_trained([pair for pair in named if id(pair[1]) in trained])
        self._seed_key = 0
        self._lies_on_vector = [False] * len(self._trained)
        layout = _layout(pair for pair in named if id(pair[1]) in trained)
        super().__init__(layout, [read(v) for v in self._trained])
        self._buffer_layout = _layout(pair for pair in named if id(pair[1]) in untrained)
        self._buffer_vector = self._buffer_layout.empty_vector()
        self._constant_bytes = np.empty(sum(_nbytes(v) for v in self._constants), np.uint8)

    @property
    def module(self) -> Any:
        """The model itself, by the name that results use."""
        return self.model

    def rehome(self, parameters: Vector, gradients: Vector) -> None:
        """Keep parameters and gradients in this memory from now on; the values stay."""
        self.layout.gather([read(v) for v in self._trained], parameters)
        self._vector, self._gradient = parameters, gradients
        self._views = self.layout.views(parameters)
        self._gradient_views = self.layout.views(gradients)
        if keras.backend.backend() == "torch":
            self._lies_on_vector = [
                _lay_on(v, view) for v, view in zip(self._trained, self._views, strict=True)
            ]

    def release(self) -> None:
        """Give each variable memory of its own again, as it had before."""
        for variable, lies in zip(self._trained, self._lies_on_vector, strict=True):
            if lies:
                variable.value.data = variable.value.data.clone()

    @property
    def stores_rounded(self) -> bool:
        """Whether the model may hold less of a number than the vector does."""
        return any(e.dtype != self.layout.dtype.name for e in self.layout.entries)

    def parameters(self) -> Vector:
        for variable, view in self._copied():
            view[...] = read(variable)
        return self._vector

    def accept_parameters(self) -> None:
        for variable, view in self._copied():
            write(variable, view)

    def _copied(self) -> list[tuple[Any, Vector]]:
        pairs = zip(self._trained, self._views, self._lies_on_vector, strict=True)
        return [(variable, view) for variable, view, lies in pairs if not lies]

    def keep_gradients(
        self, gradients: Sequence[Any], weight: float = 1.0, add: bool = False
    ) -> None:
        """Put the gradients of the trained variables (None: it has none) into the vector."""
        if not add:
            self._present[:] = 0.0
        for at, (view, gradient) in enumerate(zip(self._gradient_views, gradients, strict=True)):
            if gradient is None:
                if not self._present[at]:
                    view[...] = 0.0
                continue
            values = np.asarray(gradient)
            if add and self._present[at]:
                view += values * view.dtype.type(weight)
            elif weight == 1.0:
                view[...] = values
            else:
                np.multiply(values, weight, out=view, casting="same_kind")
            self._present[at] = 1.0

    def held_gradients(self) -> list[Vector | None]:
        """For each trained variable a view of its gradient; None where no worker had one."""
        return [
            view if there else None
            for view, there in zip(self._gradient_views, self._present.tolist(), strict=True)
        ]

    def clear_gradients(self) -> None:
        """This worker has no samples in this step."""
        self._gradient[:] = 0.0
        self._present[:] = 0.0

    def accept_gradients(self, present: Vector) -> None:
        self._present[:] = present > 0

    def buffers(self) -> Vector:
        return self._buffer_layout.gather([read(v) for v in self._buffers], self._buffer_vector)

    def accept_buffers(self) -> None:
        views = self._buffer_layout.views(self._buffer_vector)
        for variable, view in zip(self._buffers, views, strict=True):
            write(variable, view)

    def constants(self) -> Vector:
        """Seeds come without this rank's key, so that they are the same on all ranks."""
        for variable, room in self._constant_rooms():
            values = np.ascontiguousarray(read(variable))
            room[:] = self._turn_seed(variable, values).reshape(-1).view(np.uint8)
        return self._constant_bytes

    def accept_constants(self) -> None:
        for variable, room in self._constant_rooms():
            values = room.copy().view(_dtype(variable)).reshape(variable.shape)
            write(variable, self._turn_seed(variable, values))

    def reseed(self, key: int) -> None:
        """Let dropout draw other numbers than on ranks with another key; 0 keeps the original."""
        seeds = [v for v in self._constants if is_seed(v)]
        plain = [self._turn_seed(v, read(v)) for v in seeds]
        self._seed_key = key % 2**_KEY_BITS
        for variable, values in zip(seeds, plain, strict=True):
            write(variable, self._turn_seed(variable, values))

    def _turn_seed(self, variable: Any, values: Vector) -> Vector:
        """From an original seed to this rank's, or back: it is its own inverse."""
        if not is_seed(variable) or not self._seed_key:
            return values
        turned = np.array(values)
        turned[0] = int(turned[0]) ^ self._seed_key
        return turned

    def _constant_rooms(self) -> list[tuple[Any, Vector]]:
        rooms, at = [], 0
        for variable in self._constants:
            end = at + _nbytes(variable)
            rooms.append((variable, self._constant_bytes[at:end]))
            at = end
        return rooms

    def locate_variables(self) -> list[list[Any]]:
        """For each variable of the model, in its own order: the vector that holds it
        (`parameters`, `buffers`, `constants`), name, shape, type and offset in that vector."""
        places: dict[int, list[Any]] = {}
        for kind, layout, held in (
            ("parameters", self.layout, self._trained),
            ("buffers", self._buffer_layout, self._buffers),
        ):
            for entry, variable in zip(layout.entries, held, strict=True):
                places[id(variable)] = [kind, entry.name, list(entry.shape), entry.dtype]
                places[id(variable)].append(entry.offset)
        names = {id(v): name for v, name in zip(self._variables, self._names, strict=True)}
        at = 0
        for variable in self._constants:
            shape = [int(n) for n in variable.shape]
            places[id(variable)] = ["constants", names[id(variable)], shape, kind_of(variable), at]
            at += _nbytes(variable)
        return [places[id(variable)] for variable in self._variables]


def read(variable: Any) -> Vector:
    """The variable's values; with the torch backend that may be its own memory."""
    values: Vector = np.asarray(keras.ops.convert_to_numpy(variable.value))
    return values


def write(variable: Any, values: Vector) -> None:
    """Assign these values. JAX and TensorFlow may keep the very array they are given, so they get a
    copy."""
    variable.assign(np.array(values))


def kind_of(variable: Any) -> str:
    """The name of the type in which the variable is kept."""
    return str(keras.backend.standardize_dtype(variable.dtype))


def _untrained_state(model: Any) -> set[int]:
    """Float variables that layers keep without training them, as BatchNorm does; not the weights of
    frozen layers."""
    layers: Callable[[], Iterable[Any]] = model._flatten_layers
    return {
        id(variable)
        for layer in layers()
        for variable in layer._non_trainable_variables
        if _is_float(variable)
    }


def _check_trained(named: Sequence[tuple[str, Any]]) -> None:
    if not named:
        raise ReplicaError("the model has no variable to train (none is trainable)")
    for name, variable in named:
        if not _is_float(variable):
            raise ReplicaError(f"variable '{name}' is {variable.dtype}; only real ones train")


def _lay_on(variable: Any, view: Vector) -> bool:
    """Move a torch variable onto this memory, if it is of the same kind."""
    import torch

    parameter, room = variable.value, torch.from_numpy(view)
    if parameter.dtype != room.dtype or parameter.device.type != "cpu":
        return False
    parameter.data = room
    return True


def _layout(named: Iterable[tuple[str, Any]]) -> Layout:
    return Layout.of((name, tuple(variable.shape), kind_of(variable)) for name, variable in named)


def _is_float(variable: Any) -> bool:
    return "float" in kind_of(variable)


def is_seed(variable: Any) -> bool:
    """Whether it is the state of a random generator, such as Dropout's."""
    return variable.path.endswith(_SEEDS) and not _is_float(variable)


def _dtype(variable: Any) -> np.dtype[Any]:
    return read(variable).dtype


def _nbytes(variable: Any) -> int:
    return read(variable).nbytes
