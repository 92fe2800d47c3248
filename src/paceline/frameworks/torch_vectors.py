"""A torch module as flat vectors: its parameters, gradients, buffers and constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.parameter import UninitializedParameter

from paceline.errors import ReplicaError, TrainingError
from paceline.vectors import Layout, Vector, checksum


class TorchVectors:
    """The module's trained parameters, moved onto flat memory; the module and its users see no
    difference, since the Parameter objects stay the same.

    A parameter that the vector cannot hold as it is (another dtype, another device) stays where it
    is and is copied to and fro. Frozen parameters are constants: they are made equal at the start
    and never travel again.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        named = list(module.named_parameters())  # tied weights appear once
        for name, parameter in named:
            _check(name, parameter)
        self._names = [name for name, p in named if p.requires_grad]
        self._trained = [p for _, p in named if p.requires_grad]
        self._frozen = [(name, p) for name, p in named if not p.requires_grad]
        if not self._trained:
            raise ReplicaError("the model has no parameter to train (none requires a gradient)")
        self.layout = _layout(self._names, self._trained)

        floating = [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
        self._buffers = [b for _, b in floating]
        self._buffer_layout = _layout([n for n, _ in floating], self._buffers)
        self._buffer_vector = self._buffer_layout.empty_vector()
        self._buffer_views = _tensor_views(self._buffer_layout, self._buffer_vector, self._buffers)
        others = [b for b in module.buffers() if not b.is_floating_point()]
        self._constants = [p.detach() for _, p in self._frozen] + others
        self._constant_bytes = np.empty(sum(t.nbytes for t in self._constants), np.uint8)

        self._present = np.ones(len(self._trained), self.layout.dtype)
        self.rehome(self.layout.empty_vector(), self.layout.empty_vector())

    def rehome(self, parameters: Vector, gradients: Vector) -> None:
        """Keep parameters and gradients in this memory from now on; the values stay."""
        self._vector, self._gradient = parameters, gradients
        self._views = _tensor_views(self.layout, parameters, self._trained)
        self._gradient_views = _tensor_views(self.layout, gradients, self._trained)
        self._copied = []
        for parameter, view in zip(self._trained, self._views, strict=True):
            view.copy_(parameter.detach())
            if view.dtype == parameter.dtype and parameter.device.type == "cpu":
                parameter.data = view
            else:
                self._copied.append((parameter, view))
        self.clear_gradients()

    def parameters(self) -> Vector:
        for parameter, view in self._copied:
            view.copy_(parameter.detach())
        return self._vector

    def accept_parameters(self) -> None:
        with torch.no_grad():
            for parameter, view in self._copied:
                parameter.copy_(view)

    def clear_gradients(self) -> None:
        """Drop the gradients: autograd then hands over its own memory instead of adding to ours,
        which saves a pass for zeroing and one for adding."""
        for parameter in self._trained:
            parameter.grad = None

    def collect_gradients(self) -> tuple[Vector, Vector]:
        for index, (parameter, view) in enumerate(
            zip(self._trained, self._gradient_views, strict=True)
        ):
            gradient = parameter.grad
            self._present[index] = gradient is not None
            if gradient is None:
                view.zero_()
            elif gradient is not view:
                view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        for name, parameter in self._frozen:
            if parameter.grad is not None:
                raise TrainingError(
                    f"parameter '{name}' was frozen when training began and has a gradient now; "
                    "unfreeze it before Paceline takes the model (keep_pace, Trainer)"
                )
        return self._gradient, self._present

    def accept_gradients(self, present: Vector) -> None:
        for parameter, view, there in zip(
            self._trained, self._gradient_views, present, strict=True
        ):
            if not there:  # as in plain torch, the optimizer leaves such a parameter alone
                parameter.grad = None
            elif view.dtype == parameter.dtype and parameter.device.type == "cpu":
                parameter.grad = view
            else:
                parameter.grad = view.to(parameter.device, parameter.dtype)

    def buffers(self) -> Vector:
        for view, buffer in zip(self._buffer_views, self._buffers, strict=True):
            view.copy_(buffer)
        return self._buffer_vector

    def accept_buffers(self) -> None:
        with torch.no_grad():
            for view, buffer in zip(self._buffer_views, self._buffers, strict=True):
                buffer.copy_(view)

    def constants(self) -> Vector:
        for tensor, room in self._constant_rooms():
            room[:] = tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
        return self._constant_bytes

    def accept_constants(self) -> None:
        with torch.no_grad():
            for tensor, room in self._constant_rooms():
                fresh = torch.from_numpy(room.copy()).view(tensor.dtype).reshape(tensor.shape)
                tensor.copy_(fresh)

    def _constant_rooms(self) -> list[tuple[torch.Tensor, Vector]]:
        rooms, at = [], 0
        for tensor in self._constants:
            rooms.append((tensor, self._constant_bytes[at : at + tensor.nbytes]))
            at += tensor.nbytes
        return [(tensor, room) for tensor, room in rooms if tensor.numel()]


def state_checksum(optimizer: torch.optim.Optimizer) -> int:
    """A hash of the optimizer's tensors (momenta and the like)."""
    state = optimizer.state_dict()["state"]
    tensors = [value for entry in state.values() for value in entry.values()]
    return checksum(
        *(
            tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            for tensor in tensors
            if isinstance(tensor, torch.Tensor) and tensor.numel()
        )
    )


def _check(name: str, parameter: torch.Tensor) -> None:
    if isinstance(parameter, UninitializedParameter):
        raise ReplicaError(
            f"parameter '{name}' has no shape yet (a lazy module); run one batch through the model "
            "before training"
        )
    if parameter.requires_grad and parameter.is_complex():
        raise ReplicaError(f"parameter '{name}' is {parameter.dtype}; only real ones are trained")


def _layout(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> Layout:
    return Layout.of(
        (name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in zip(names, tensors, strict=True)
    )


def _tensor_views(
    layout: Layout, vector: Vector, like: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """One tensor per entry on the vector's memory, with the strides of its original
    (channels-last weights stay channels-last)."""
    flat = torch.from_numpy(vector)
    return [
        torch.as_strided(flat, tensor.shape, torch.empty_like(tensor).stride(), entry.offset)
        for entry, tensor in zip(layout.entries, like, strict=True)
    ]
