"""The arguments of torch.distributed's calls: read and checked before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch.distributed as dist
from torch import Tensor

from paceline.torch_backend.reductions import Reduction, reduction_of
from paceline.torch_backend.tensors import describe
from paceline.torch_backend.work import GroupError

Tensors: TypeAlias = Tensor | Sequence[Tensor]
"""One or several: torch passes either."""
Lists = list[Tensor] | list[list[Tensor]]
"""A tensor for each rank, or several such lists: torch passes either."""
Opts = object
"""What torch passes besides tensors: its options of the call, a bare value, or None."""


def list_of(tensors: Tensors) -> list[Tensor]:
    """A tensor, or several, as a list."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def root_of(opts: Opts) -> int:
    """The root of a collective."""
    return opts if isinstance(opts, int) else int(getattr(opts, "rootRank", 0))


def kind_of(opts: Opts) -> dist.ReduceOp.RedOpType:
    """The reduction that was asked for: a value of torch's RedOpType."""
    op = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    return getattr(op, "op", op)


def reduction_for(opts: Opts, tensors: list[Tensor], name: str) -> Reduction:
    """How to reduce these tensors."""
    types = {tensor.dtype for tensor in tensors}
    if len(types) != 1:
        raise GroupError(f"{name}: its tensors have {len(types)} types; they must have the same")
    return reduction_of(kind_of(opts), types.pop(), name)


def check_count(count: int, ranks: int, name: str, what: str) -> None:
    """Refuse lists that do not have a tensor for each rank."""
    if count != ranks:
        raise GroupError(f"{name}: {count} {what} for {ranks} ranks; pass one for each")


def check_fits(received: Tensor, tensor: Tensor, name: str) -> None:
    """Refuse an output that differs in size or type."""
    if received.numel() != tensor.numel() or received.dtype != tensor.dtype:
        raise GroupError(f"{name}: {describe([tensor])} does not fit in {describe([received])}")


def check_multiple(large: Tensor, small: Tensor, ranks: int, name: str) -> None:
    """Refuse a tensor that does not have the size of one small tensor for each rank."""
    if large.numel() != small.numel() * ranks or large.dtype != small.dtype:
        raise GroupError(f"{name}: {describe([large])} is not {ranks} times {describe([small])}")


def check_split(tensor: Tensor, sizes: Sequence[int], ranks: int) -> None:
    """Refuse rows that cannot be divided among the ranks."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if sizes and (len(sizes) != ranks or sum(sizes) != rows):
        raise GroupError(
            f"all_to_all_single: {list(sizes)} does not divide {rows} rows among {ranks} ranks"
        )
    if not sizes and rows % ranks:
        raise GroupError(
            f"all_to_all_single: {rows} rows are not divisible by {ranks} ranks; "
            "pass the sizes of the splits"
        )
