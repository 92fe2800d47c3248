"""A torch optimizer that steps on one slice of the flat vector, chunk by chunk.

Ranks that share their parameters divide the optimizer's work: each keeps the state of its own slice
and moves that slice for all. It works for optimizers that treat every element by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paceline.vectors import Layout, Vector

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


@dataclass
class _Chunk:
    piece: slice
    gradient: torch.Tensor
    segments: list[_Segment]
    optimizer: torch.optim.Optimizer


class SliceOptimizer:
    """An optimizer's steps on a slice of the parameter vector.

    Each chunk has an optimizer of the same class on views of the vector, so the arithmetic is
    torch's own and the results are those of the whole, bit for bit.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        layout: Layout,
        trained: Sequence[torch.nn.Parameter],
        parameters: Vector,
        piece: slice,
    ) -> None:
        self._optimizer, self._layout, self._trained = optimizer, layout, trained
        self._groups = _groups_of(optimizer, trained)
        self._flat = torch.from_numpy(parameters)
        self._scratch = torch.zeros(CHUNK_ELEMENTS, dtype=self._flat.dtype)
        self.chunks = [self._make_chunk(part) for part in _cut(piece, CHUNK_ELEMENTS)]
        self._take_over_state()

    def step(self, present: Sequence[float], fill: Callable[[slice, Vector], None]) -> None:
        """One step; `fill(piece, out)` writes the gradient of a piece of the vector.

        A parameter that is not `present`, since nobody has a gradient for it, is left alone.
        """
        for chunk in self.chunks:
            fill(chunk.piece, chunk.gradient.numpy())
            for segment in chunk.segments:
                segment.tensor.grad = segment.gradient if present[segment.entry] else None
            for mine, theirs in zip(
                chunk.optimizer.param_groups, self._optimizer.param_groups, strict=True
            ):
                mine.update((key, value) for key, value in theirs.items() if key != "params")
            chunk.optimizer.step()

    def states(self) -> Iterator[tuple[int, str, slice, Any]]:
        """What this slice keeps: parameter, name, place in the vector, and the value."""
        for chunk in self.chunks:
            for segment in chunk.segments:
                for name, value in chunk.optimizer.state[segment.tensor].items():
                    if isinstance(value, torch.Tensor):
                        yield segment.entry, name, segment.piece, value

    def _make_chunk(self, piece: slice) -> _Chunk:
        gradient = self._scratch[: piece.stop - piece.start]
        segments = [self._make_segment(at, piece, gradient) for at in self._entries_in(piece)]
        groups: list[dict[str, Any]] = [
            {**group, "params": []} for group in self._optimizer.param_groups
        ]
        for segment in segments:
            groups[segment.group]["params"].append(segment.tensor)
        optimizer = type(self._optimizer)(groups)
        return _Chunk(piece, gradient, segments, optimizer)

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

    def _take_over_state(self) -> None:
        """Begin with the state that the optimizer has already, if it has any."""
        for chunk in self.chunks:
            for segment in chunk.segments:
                state = self._optimizer.state.get(self._trained[segment.entry], {})
                offset = self._layout.entries[segment.entry].offset
                inside = slice(segment.piece.start - offset, segment.piece.stop - offset)
                for name, value in state.items():
                    chunk.optimizer.state[segment.tensor][name] = _part_of(
                        value, self._trained[segment.entry], inside
                    )


def divides(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step on slices is a step on the whole."""
    return type(optimizer) in ELEMENTWISE


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


def _part_of(value: Any, parameter: torch.Tensor, inside: slice) -> Any:
    """The slice of a state tensor, in the order in which the parameter lies in memory."""
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape or not value.dim():
        return value.clone() if isinstance(value, torch.Tensor) else value
    laid = torch.empty_like(parameter).copy_(value)
    return laid.as_strided((laid.numel(),), (1,))[inside].clone()


def _cut(piece: slice, size: int) -> list[slice]:
    return [
        slice(first, min(first + size, piece.stop))
        for first in range(piece.start, piece.stop, size)
    ]
