"""Reductions: torch's operations and types, in terms of those that MPI knows.

Half precision is summed in float32 and rounded once, at the end: MPI does not know bfloat16, and
rounding after every addition loses more. Booleans are bits: their sum is "any".
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from paceline.comm.nonblocking.async_comm import ReduceOpName
from paceline.errors import WorldError
from paceline.torch_backend.memory import numbers_of
from paceline.torch_backend.tensors import name_of, plain, write

_BITS: dict[ReduceOp.RedOpType, ReduceOpName] = {
    ReduceOp.RedOpType.BAND: "and",
    ReduceOp.RedOpType.BOR: "or",
    ReduceOp.RedOpType.BXOR: "xor",
}
_HOW: dict[ReduceOp.RedOpType, ReduceOpName] = {
    ReduceOp.RedOpType.SUM: "sum",
    ReduceOp.RedOpType.AVG: "sum",
    ReduceOp.RedOpType.PRODUCT: "product",
    ReduceOp.RedOpType.MIN: "min",
    ReduceOp.RedOpType.MAX: "max",
    **_BITS,
}
_OF_BOOL: dict[ReduceOpName, ReduceOpName] = {
    "sum": "or",
    "product": "and",
    "min": "and",
    "max": "or",
}
_NARROW_BYTES = 2
"""Floating-point numbers of at most this many bytes are summed as float32."""


class Reduction:
    """An operation on tensors of one type."""

    def __init__(self, kind: ReduceOp.RedOpType, dtype: torch.dtype, what: str) -> None:
        """Raises a WorldError if the operation is undefined for the type."""
        self._averages = kind == ReduceOp.RedOpType.AVG
        if kind not in _HOW:
            raise WorldError(f"{what}: {kind} is not among {', '.join(map(_name, _HOW))}")
        floats = dtype.is_floating_point or dtype.is_complex
        refused = (
            (kind in _BITS and floats)
            or (dtype == torch.bool and self._averages)
            or (dtype.is_complex and _HOW[kind] in ("min", "max"))
        )
        if refused:
            raise WorldError(f"{what}: {_name(kind)} is undefined for {name_of(dtype)}")
        how = _HOW[kind]
        self._work_type = _work_type(dtype)
        self.how: ReduceOpName = _OF_BOOL.get(how, how) if dtype == torch.bool else how

    def operand(self, tensor: Tensor) -> Operand:
        """The tensor's numbers in a type that MPI knows."""
        return Operand(tensor, self._work_type)

    def finish(self, numbers: Tensor, ranks: int) -> None:
        """Divide the sum, if the reduction is an average."""
        if not self._averages:
            return
        if numbers.is_floating_point() or numbers.is_complex():
            with torch.inference_mode():
                numbers.div_(ranks)
        else:  # towards zero, as torch does, which cannot divide all integer types
            array = numbers_of(numbers)
            below = (array < 0) & (array % ranks != 0)
            array //= ranks
            array += below


@cache
def reduction_of(kind: ReduceOp.RedOpType, dtype: torch.dtype, what: str) -> Reduction:
    """The reduction of this kind, for the call named `what`."""
    return Reduction(kind, dtype, what)


class Operand:
    """A tensor's numbers as a flat array on the host: its own memory if possible."""

    def __init__(self, tensor: Tensor, dtype: torch.dtype) -> None:
        self.tensor = tensor
        flat = plain(tensor).detach().reshape(-1)
        same_bytes = tensor.dtype == torch.bool
        self.numbers: Tensor = flat.view(dtype) if same_bytes else flat.to(dtype)
        self.array = numbers_of(self.numbers)

    def copy_back(self) -> None:
        """Copy the array to the tensor, if it is not the tensor's memory."""
        if self.numbers.data_ptr() != self.tensor.data_ptr():
            result = self.numbers
            if self.tensor.dtype == torch.bool:
                result = result.view(torch.bool)
            write(self.tensor, result)


def _work_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which MPI reduces."""
    if dtype == torch.bool:
        return torch.uint8
    narrow = dtype.is_floating_point and dtype.itemsize <= _NARROW_BYTES
    return torch.float32 if narrow else dtype


def _name(kind: ReduceOp.RedOpType) -> str:
    return str(kind).rpartition(".")[2]
