"""A torch optimizer that steps on slices of the flat vector, chunk by chunk.

Ranks that share their parameters divide the optimizer's work: each keeps the state of its own
slices and moves them for all. It works for optimizers that treat every element by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paceline.core.chunks import chunks
from paceline.core.vectors import Layout, Vector

ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
)
"""Optimizers in which no element looks at another one."""

CHUNK_ELEMENTS = 128 * 1024
"""Gradient, parameters and momenta of a chunk fit into a core's own cache together."""


@dataclass
class _Segment:
    """The part of one parameter that lies in a chunk."""

    entry: int
    group: int
    piece: slice
    tensor: torch.nn.Parameter
    gradient: torch.Tensor
    at_home: bool = False
    """Its state lies where the other ranks see it."""


@dataclass
class TorchChunk:
    """A part of the vector with an optimizer of its own."""

    piece: slice
    gradient: Vector
    segments: list[_Segment]
    optimizer: torch.optim.Optimizer


class SliceOptimizer:
    """An optimizer's steps on pieces of the parameter vector.

    Each chunk has an optimizer of the same class on views of the vector, so the arithmetic is
    torch's own and the results are those of the whole, bit for bit. `states` has a vector for each
    kind of state, as long as the parameters: the optimizers keep their state there.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        layout: Layout,
        trained: Sequence[torch.nn.Parameter],
        parameters: Vector,
        pieces: Sequence[slice],
        states: Mapping[str, Vector],
    ) -> None:
        self._optimizer, self._layout, self._trained = optimizer, layout, trained
        self._groups = _groups_of(optimizer, trained)
        self._flat = torch.from_numpy(parameters)
        self._states = {name: torch.from_numpy(vector) for name, vector in states.items()}
        self._scratch = torch.zeros(CHUNK_ELEMENTS, dtype=self._flat.dtype)
        self.chunks = [
            self._make_chunk(part) for piece in pieces for part in chunks(piece, CHUNK_ELEMENTS)
        ]
        self._settings = _settings(optimizer)
        self._kept = optimizer_slots(optimizer)
        self._step_of_torch = inspect.unwrap(type(optimizer).step)
        self._counts = np.zeros(len(layout.entries), np.int64)
        """By parameter, how many steps it has taken here."""
        self._present: list[bool] = []
        self._counts_before = [0.0] * len(layout.entries)
        self.take_over_state()

    def stepping(self, present: Vector) -> AbstractContextManager[None]:
        """Around the steps of all chunks, each once.

        A parameter that is not `present`, since nobody has a gradient for it, is left alone.
        """
        self._follow_settings()
        self._counts += present != 0
        self._present = present.tolist()
        grad_mode: AbstractContextManager[None] = torch.no_grad()
        return grad_mode

    def step(self, chunk: TorchChunk) -> None:
        """Step on a chunk whose gradient has been written."""
        for segment in chunk.segments:
            segment.tensor.grad = segment.gradient if self._present[segment.entry] else None
        self._step_of_torch(chunk.optimizer)  # without the hooks and profiling around it
        for segment in chunk.segments:
            if not segment.at_home:
                self._bring_home(chunk, segment)

    def for_pieces(self, pieces: Sequence[slice], present: Vector | None) -> SliceOptimizer:
        """The same optimizer on pieces of a rank that is lost, as it was before the step; `present`
        if this one has begun the step with it."""
        begun = 0 if present is None else present != 0
        self._counts -= begun
        self.show_state()
        others = SliceOptimizer(
            self._optimizer,
            self._layout,
            self._trained,
            self._flat.numpy(),
            pieces,
            {name: state.numpy() for name, state in self._states.items()},
        )
        self._counts += begun
        return others

    def take_over_state(self) -> None:
        """Begin with the state that the user's optimizer has, if it has any."""
        self._counts[:] = 0
        for at, parameter in enumerate(self._trained):
            step = self._optimizer.state.get(parameter, {}).get("step", 0.0)
            self._counts_before[at] = float(step)
        laid: dict[int, dict[str, Any]] = {}  # once for each parameter: it may have many chunks
        for chunk in self.chunks:
            for segment in chunk.segments:
                at, parameter = segment.entry, self._trained[segment.entry]
                if at not in laid:
                    state = self._optimizer.state.get(parameter, {})
                    laid[at] = {name: _laid(value, parameter) for name, value in state.items()}
                offset = self._layout.entries[at].offset
                inside = slice(segment.piece.start - offset, segment.piece.stop - offset)
                chunk.optimizer.state[segment.tensor] = {
                    name: _part_of(value, inside) for name, value in laid[at].items()
                }
                segment.at_home = not self._kept[segment.group].vectors
                self._bring_home(chunk, segment)

    def show_state(self, copy: bool = False) -> None:
        """Give the user's optimizer the state of all slices; no rank may step meanwhile."""
        for at, number in self._groups.items():
            kept, taken = self._kept[number], int(self._counts[at])
            if not taken or not (kept.vectors or kept.counts):  # it has what it had
                continue
            parameter = self._trained[at]
            known = self._optimizer.state[parameter]
            for name in kept.vectors:
                view = torch.as_strided(
                    self._states[name],
                    parameter.shape,
                    torch.empty_like(parameter).stride(),
                    self._layout.entries[at].offset,
                )
                known[name] = view.clone() if copy else view
            for name, like in kept.counts.items():
                known[name] = torch.full_like(like, self._counts_before[at] + taken)

    def _bring_home(self, chunk: TorchChunk, segment: _Segment) -> None:
        """Move a state that torch has just made to where the other ranks see it."""
        state = chunk.optimizer.state.get(segment.tensor, {})
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim():
                home = self._states[name][segment.piece]
                home.copy_(value)
                state[name] = home
                segment.at_home = True

    def _follow_settings(self) -> None:
        """Let a schedule that changes the user's optimizer change the chunks', too."""
        groups = self._optimizer.param_groups
        if all(map(_has, groups, self._settings)):
            return
        settings = self._settings = _settings(self._optimizer)
        for chunk in self.chunks:
            for mine, theirs in zip(chunk.optimizer.param_groups, settings, strict=True):
                mine.update(theirs)

    def _make_chunk(self, piece: slice) -> TorchChunk:
        gradient = self._scratch[: piece.stop - piece.start]
        segments = [self._make_segment(at, piece, gradient) for at in self._entries_in(piece)]
        groups: list[dict[str, Any]] = [
            {**group, "params": []} for group in self._optimizer.param_groups
        ]
        for segment in segments:
            groups[segment.group]["params"].append(segment.tensor)
        optimizer = type(self._optimizer)(groups)
        return TorchChunk(piece, gradient.numpy(), segments, optimizer)

    def _entries_in(self, piece: slice) -> list[int]:
        return [
            at
            for at, entry in enumerate(self._layout.entries)
            if entry.offset < piece.stop
            and entry.offset + entry.size > piece.start
            and at in self._groups
        ]

    def _make_segment(self, at: int, piece: slice, gradient: torch.Tensor) -> _Segment:
        entry = self._layout.entries[at]
        first = max(piece.start, entry.offset)
        last = min(piece.stop, entry.offset + entry.size)
        return _Segment(
            at,
            self._groups[at],
            slice(first, last),
            torch.nn.Parameter(self._flat[first:last], requires_grad=False),
            gradient[first - piece.start : last - piece.start],
        )


def step_is_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step on slices is a step on the whole."""
    return type(optimizer) in ELEMENTWISE


@dataclass(frozen=True)
class Kept:
    """What an optimizer keeps for the parameters of one group."""

    vectors: tuple[str, ...]
    """A value for each element: momenta and the like."""
    counts: dict[str, torch.Tensor]
    """One number for all elements: the steps taken."""


def optimizer_slots(optimizer: torch.optim.Optimizer) -> list[Kept]:
    """What the optimizer keeps in each of its groups, found by a trial step."""
    trial = [torch.nn.Parameter(torch.zeros(2)) for _ in optimizer.param_groups]
    copy = type(optimizer)(
        [
            {**group, "params": [parameter]}
            for group, parameter in zip(optimizer.param_groups, trial, strict=True)
        ]
    )
    for parameter in trial:
        parameter.grad = torch.ones(2)
    copy.step()
    found = []
    for parameter in trial:
        tensors = {n: v for n, v in copy.state[parameter].items() if isinstance(v, torch.Tensor)}
        vectors = tuple(name for name, value in tensors.items() if value.dim())
        counts = {name: value for name, value in tensors.items() if not value.dim()}
        found.append(Kept(vectors, counts))
    return found


def _settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def _has(group: dict[str, Any], settings: dict[str, Any]) -> bool:
    return all(group[key] is value or group[key] == value for key, value in settings.items())


def _groups_of(
    optimizer: torch.optim.Optimizer, trained: Sequence[torch.nn.Parameter]
) -> dict[int, int]:
    """The parameter group of each trained parameter that the optimizer has."""
    places = {id(parameter): at for at, parameter in enumerate(trained)}
    return {
        places[id(parameter)]: number
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if id(parameter) in places
    }


def _laid(value: Any, parameter: torch.Tensor) -> Any:
    """A state tensor in the order in which the parameter lies in memory; others as they are."""
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape or not value.dim():
        return value
    order = torch.empty_like(parameter, device="meta").stride()
    if value.stride() != order:
        value = torch.empty_strided(value.shape, order, dtype=value.dtype).copy_(value)
    return value.as_strided((value.numel(),), (1,))


def _part_of(value: Any, inside: slice) -> Any:
    """A copy of the slice of a laid-out state tensor, or of a value that all slices have."""
    if not isinstance(value, torch.Tensor):
        return value
    return value[inside].clone() if value.dim() else value.clone()
