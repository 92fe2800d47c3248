"""Tensors as the arrays that MPI reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from paceline.comm import Buffer
from paceline.errors import WorldError


def check(tensors: Sequence[Tensor], what: str) -> None:
    """Refuse what cannot travel, before anything is started."""
    for tensor in tensors:
        if not tensor.is_cpu:
            raise WorldError(
                f"{what}: a tensor is on {tensor.device}, and the mpi4py backend carries those of "
                "the CPU; use .cpu(), or the nccl backend with init_method='mpi4py://'"
            )
        if tensor.layout != torch.strided:
            raise WorldError(f"{what}: a tensor is {tensor.layout}; use .to_dense()")


def raw(tensor: Tensor) -> Buffer:
    """The bytes of a contiguous tensor, where they are."""
    flat = tensor.detach().reshape(-1)
    return cast(Buffer, flat.view(torch.uint8).numpy())


class Outgoing:
    """The bytes of a tensor that is sent; of one with gaps those of a copy."""

    def __init__(self, tensor: Tensor) -> None:
        self.bytes = raw(plain(tensor))


class Incoming:
    """Room for the bytes of a tensor that is received: its own, unless it has gaps."""

    def __init__(self, tensor: Tensor, keep: bool = False) -> None:
        """`keep`: it starts with what the tensor holds."""
        self.tensor = tensor
        self._room = tensor if _is_plain(tensor) else plain(tensor) if keep else _room_for(tensor)
        self.bytes = raw(self._room)

    def settle(self) -> None:
        """What came is the tensor's now."""
        if self._room is not self.tensor:
            write(self.tensor, self._room)


def plain(tensor: Tensor) -> Tensor:
    """The tensor without gaps and lazy conjugation; itself if it has none."""
    if _is_plain(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def write(tensor: Tensor, values: Tensor) -> None:
    """Overwrite a tensor, whatever the caller's thread records about it."""
    if tensor.is_inference():
        with torch.inference_mode():
            tensor.copy_(values.view(tensor.shape))
    else:
        with torch.no_grad():
            tensor.detach().copy_(values.view(tensor.shape))


def _is_plain(tensor: Tensor) -> bool:
    return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def _room_for(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def describe(tensors: list[Tensor]) -> str:
    """What is exchanged, for a message.

    >>> describe([torch.zeros(2, 3)])
    '6 x float32'
    """
    return ", ".join(f"{tensor.numel()} x {name_of(tensor.dtype)}" for tensor in tensors[:3]) + (
        ", ..." if len(tensors) > 3 else ""
    )


def name_of(dtype: Any) -> str:
    """A type's name without its module."""
    return str(dtype).removeprefix("torch.")
