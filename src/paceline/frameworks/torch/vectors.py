"""A torch module as flat vectors: its parameters, gradients, buffers and constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch.nn.parameter import UninitializedParameter

from paceline.core.vectors import Layout, Vector, checksum
from paceline.errors import ReplicaError, TrainingError
from paceline.frameworks.torch.optimizer_state import pack_optimizer, unpack_optimizer
from paceline.frameworks.torch.slice_optimizer import (
    SliceOptimizer,
    optimizer_slots,
    step_is_elementwise,
)


class TorchVectors:
    """The module's trained parameters, moved onto flat memory; the module and its users see no
    difference, since the Parameter objects stay the same.

    A parameter that the vector cannot hold as it is (another dtype, another device) stays where it
    is and is copied back and forth. Frozen parameters are constants: they are made equal at the
    start and never sent again.
    """

    optimizer: torch.optim.Optimizer

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        named = list(module.named_parameters())  # tied weights appear once
        _check_parameters(named)
        self._trained = [p for _, p in named if p.requires_grad]
        self._frozen = [(name, p) for name, p in named if not p.requires_grad]
        if not self._trained:
            raise ReplicaError("the model has no parameter to train (none requires a gradient)")
        self.layout = _layout((name, p) for name, p in named if p.requires_grad)

        buffers = list(_places_of_buffers(module))
        floating = [place for place in buffers if place.tensor.is_floating_point()]
        self._buffers = floating
        self._buffer_layout = _layout((place.name, place.tensor) for place in floating)
        self._buffer_vector = self._buffer_layout.empty_vector()
        self._buffer_views = _views(
            self._buffer_layout, self._buffer_vector, [place.tensor for place in floating]
        )
        self._counters = [place for place in buffers if not place.tensor.is_floating_point()]
        self._constant_bytes = np.empty(sum(t.nbytes for t in self._constants()), np.uint8)

        self._present = np.ones(len(self._trained), self.layout.dtype)
        self.rehome(self.layout.empty_vector(), self.layout.empty_vector())

    def rehome(self, parameters: Vector, gradients: Vector) -> None:
        """Keep parameters and gradients in this memory from now on; the values stay."""
        self._vector, self._gradient = parameters, gradients
        views = _views(self.layout, parameters, self._trained)
        self._gradient_views = _views(self.layout, gradients, self._trained)
        self._copied = []
        self._fits = []
        for parameter, view in zip(self._trained, views, strict=True):
            view.copy_(parameter.detach())
            fits = view.dtype == parameter.dtype and parameter.device.type == "cpu"
            self._fits.append(fits)
            if fits:
                parameter.data = view
            else:
                self._copied.append((parameter, view))
        self._note_homes()
        self.clear_gradients()

    def _note_homes(self) -> None:
        """Remember the addresses of parameters that are not copied back and forth."""
        self._homed = [p for p, fits in zip(self._trained, self._fits, strict=True) if fits]
        self._homes = [parameter.data_ptr() for parameter in self._homed]

    def release(self) -> None:
        """Give each parameter memory of its own again, as it had before."""
        for parameter in self._trained:
            parameter.data = parameter.data.clone()
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()
        self._note_homes()

    @property
    def stores_rounded(self) -> bool:
        """Whether the model may hold less of a number than the vector does."""
        return bool(self._copied)

    def parameters(self) -> Vector:
        self._check_places()
        for parameter, view in self._copied:
            view.copy_(parameter.detach())
        return self._vector

    def accept_parameters(self) -> None:
        with torch.no_grad():
            for parameter, view in self._copied:
                parameter.copy_(view)

    def clear_gradients(self) -> None:
        """Drop the gradients: autograd then gives us its own memory instead of adding to ours,
        which saves a pass for zeroing and one for adding."""
        for parameter in self._trained:
            parameter.grad = None

    def gradients_are_finite(self) -> bool:
        """Whether no gradient is infinite or not a number."""
        gradients = [
            p.grad.coalesce().values() if p.grad.is_sparse else p.grad
            for p in self._trained
            if p.grad is not None and p.grad.numel()
        ]
        if not gradients:
            return True
        total = torch.stack([n.to(torch.float64) for n in torch._foreach_norm(gradients)]).sum()
        # The norm of finite numbers may be too large for their type.
        return bool(torch.isfinite(total)) or all(bool(torch.isfinite(g).all()) for g in gradients)

    def collect_gradients(self) -> tuple[Vector, Vector]:
        targets, sources = [], []
        for index, (parameter, view) in enumerate(
            zip(self._trained, self._gradient_views, strict=True)
        ):
            gradient = parameter.grad
            self._present[index] = gradient is not None
            if gradient is None:
                view.zero_()
            elif gradient is not view:
                targets.append(view)
                sources.append(gradient.to_dense() if gradient.is_sparse else gradient)
        if targets:
            torch._foreach_copy_(targets, sources)
        self._check_places()
        return self._gradient, self._present

    def _check_places(self) -> None:
        """Check that what trains is still in the vector's memory, and that nothing else trains."""
        if [parameter.data_ptr() for parameter in self._homed] != self._homes:
            self._blame_moved()
        for name, parameter in self._frozen:
            if parameter.grad is not None:
                raise TrainingError(
                    f"parameter '{name}' was frozen when training began and has a gradient now; "
                    "unfreeze it before Paceline takes the model (keep_pace, Trainer), and freeze "
                    "it afterwards; or begin another keep_pace block when it thaws"
                )

    def _blame_moved(self) -> NoReturn:
        pairs = zip(self._homed, self._homes, strict=True)
        moved = next(parameter for parameter, home in pairs if parameter.data_ptr() != home)
        names = (
            e.name for e, p in zip(self.layout.entries, self._trained, strict=True) if p is moved
        )
        raise TrainingError(
            f"parameter '{next(names)}' was moved to other memory, where it is not exchanged: by "
            "p.data = ..., vector_to_parameters or model.to(...). Change values in place "
            "(p.copy_(...) under torch.no_grad()), and move the model before Paceline takes it "
            "(keep_pace, Trainer)"
        )

    def accept_gradients(self, present: Vector) -> None:
        for parameter, view, there, fits in zip(
            self._trained, self._gradient_views, present.tolist(), self._fits, strict=True
        ):
            if not there:  # as in plain torch, the optimizer leaves such a parameter alone
                parameter.grad = None
            elif fits:
                parameter.grad = view
            else:
                parameter.grad = view.to(parameter.device, parameter.dtype)

    def clip(self, max_norm: float) -> float:
        return float(torch.nn.utils.clip_grad_norm_(self._trained, max_norm))

    def step_is_elementwise(self) -> bool:
        """Whether a step of the optimizer may be taken slice by slice, by different ranks."""
        return step_is_elementwise(self.optimizer) and not self._copied

    def slot_names(self) -> list[str]:
        """What the optimizer keeps for each element, besides the parameters themselves."""
        return sorted({name for kept in optimizer_slots(self.optimizer) for name in kept.vectors})

    def slice_optimizer(
        self, parameters: Vector, pieces: Sequence[slice], states: Mapping[str, Vector]
    ) -> SliceOptimizer:
        """The optimizer, for pieces of these parameters; its state lies in `states`."""
        return SliceOptimizer(
            self.optimizer, self.layout, self._trained, parameters, pieces, states
        )

    def expose_whole_state(self, slices: SliceOptimizer) -> Callable[[], None]:
        """Let `state_dict` of the optimizer return the state of all slices, and `load_state_dict`
        fill it; returns a function to end that."""
        handles = (
            self.optimizer.register_state_dict_pre_hook(lambda _: slices.show_state()),
            self.optimizer.register_load_state_dict_post_hook(lambda _: slices.take_over_state()),
        )

        def end() -> None:
            for handle in handles:
                handle.remove()
            slices.show_state(copy=True)

        return end

    def on_gradient(self, arrived: Callable[[int], None] | None = None) -> Callable[[], None]:
        """Move each gradient to its place in the vector as soon as backward has made it, while it
        is in the cache, and report its index; returns a function to end that."""
        handles = [
            parameter.register_post_accumulate_grad_hook(_catcher(at, view, arrived))
            for at, (parameter, view) in enumerate(
                zip(self._trained, self._gradient_views, strict=True)
            )
        ]

        def end() -> None:
            for handle in handles:
                handle.remove()

        return end

    def optimizer_state(self) -> dict[str, Any]:
        """The optimizer's own state_dict; of ranks that share it, that of all slices."""
        return pack_optimizer(self.optimizer.state_dict())

    def accept_optimizer_state(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(unpack_optimizer(state, self.optimizer))

    def buffers(self) -> Vector:
        for view, place in zip(self._buffer_views, self._buffers, strict=True):
            view.copy_(place.tensor)
        return self._buffer_vector

    def accept_buffers(self) -> None:
        with torch.no_grad():
            for view, place in zip(self._buffer_views, self._buffers, strict=True):
                place.tensor.copy_(view)

    def constants(self) -> Vector:
        for tensor, room in self._constant_rooms():
            room[:] = tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
        return self._constant_bytes

    def accept_constants(self) -> None:
        with torch.no_grad():
            for tensor, room in self._constant_rooms():
                fresh = torch.from_numpy(room.copy()).view(tensor.dtype).reshape(tensor.shape)
                tensor.copy_(fresh)

    def locate_state(self) -> list[list[Any]]:
        """For each name of the module's state_dict: the vector that holds it (`parameters`,
        `buffers`, `constants`; empty if none does), name, shape, type and offset in that vector.

        Tied ones lie in one place under several names.
        """
        places: dict[int, list[Any]] = {}
        trained = zip(self.layout.entries, self._trained, strict=True)
        floating = zip(self._buffer_layout.entries, self._buffers, strict=True)
        for entry, parameter in trained:
            places[id(parameter)] = ["parameters", entry.dtype, entry.offset]
        for entry, place in floating:
            places[id(place.tensor)] = ["buffers", entry.dtype, entry.offset]
        at = 0
        fixed = [p for _, p in self._frozen] + [place.tensor for place in self._counters]
        for tensor in fixed:
            places[id(tensor)] = ["constants", str(tensor.dtype).removeprefix("torch."), at]
            at += tensor.nbytes
        rows = []
        for name, value in self.module.state_dict(keep_vars=True).items():
            vector, dtype, offset = places.get(id(value), ["", "", 0])
            rows.append([vector, name, list(getattr(value, "shape", ())), dtype, offset])
        return rows

    def _constants(self) -> list[torch.Tensor]:
        return [p.detach() for _, p in self._frozen] + [place.tensor for place in self._counters]

    def _constant_rooms(self) -> list[tuple[torch.Tensor, Vector]]:
        rooms, at = [], 0
        for tensor in self._constants():
            rooms.append((tensor, self._constant_bytes[at : at + tensor.nbytes]))
            at += tensor.nbytes
        return [(tensor, room) for tensor, room in rooms if tensor.numel()]


def _catcher(
    at: int, view: torch.Tensor, arrived: Callable[[int], None] | None
) -> Callable[[torch.Tensor], None]:
    def catch(parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is not view and gradient is not None:
            view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            parameter.grad = view
        if arrived is not None:
            arrived(at)

    return catch


@dataclass(frozen=True)
class _Place:
    """A buffer by its owner and name: a module may assign a new tensor in every step."""

    owner: torch.nn.Module
    key: str
    name: str

    @property
    def tensor(self) -> torch.Tensor:
        return getattr(self.owner, self.key)


def _places_of_buffers(module: torch.nn.Module) -> Iterator[_Place]:
    for path, owner in module.named_modules():
        for key, tensor in owner.named_buffers(recurse=False):
            name = f"{path}.{key}" if path else key
            if any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True)):
                raise ReplicaError(
                    f"buffer '{name}' is an expanded tensor and cannot be written; register it "
                    "with .contiguous()"
                )
            yield _Place(owner, key, name)


def describe_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Kind, settings, and a hash of the tensors it holds (momenta and the like)."""
    settings = [
        ", ".join(f"{key}={value}" for key, value in group.items() if key != "params")
        for group in optimizer.param_groups
    ]
    state = optimizer.state_dict()["state"]
    tensors = [value for entry in state.values() for value in entry.values()]
    held = checksum(
        *(
            tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            for tensor in tensors
            if isinstance(tensor, torch.Tensor) and tensor.numel()
        )
    )
    return f"{type(optimizer).__name__}({'; '.join(settings)}) with state {held:08x}"


def _check_parameters(named: Sequence[tuple[str, torch.Tensor]]) -> None:
    owners: dict[int, str] = {}
    for name, parameter in named:
        if isinstance(parameter, UninitializedParameter):
            raise ReplicaError(
                f"parameter '{name}' has no shape yet (a lazy module); run one batch through the "
                "model before training"
            )
        if parameter.requires_grad and parameter.is_complex():
            raise ReplicaError(f"parameter '{name}' is {parameter.dtype}; only real ones train")
        owner = owners.setdefault(parameter.data_ptr(), name) if parameter.numel() else name
        if owner != name:
            raise ReplicaError(
                f"parameters '{owner}' and '{name}' share memory but are two objects; tie them by "
                "assigning the same Parameter to both"
            )


def _layout(named: Iterable[tuple[str, torch.Tensor]]) -> Layout:
    return Layout.of((name, tuple(tensor.shape), _describe(tensor)) for name, tensor in named)


def _describe(tensor: torch.Tensor) -> str:
    """The dtype, and the order in memory where it is not the usual one."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    strides = torch.empty_like(tensor).stride()
    usual = torch.empty(tensor.shape, device="meta").stride()
    return dtype if strides == usual else f"{dtype} with strides {strides}"


def _views(layout: Layout, vector: Vector, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One tensor per entry on the vector's memory, with the strides of its original
    (channels-last weights stay channels-last)."""
    flat = torch.from_numpy(vector)
    return [
        torch.as_strided(flat, tensor.shape, torch.empty_like(tensor).stride(), entry.offset)
        for entry, tensor in zip(layout.entries, like, strict=True)
    ]
