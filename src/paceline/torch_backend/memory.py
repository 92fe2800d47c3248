"""The memory of tensors as arrays of numpy, which leaves the tensors as they are."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from paceline.comm import Buffer


class _Memory:
    """A tensor's memory, as numpy asks for memory that is not its own.

    `Tensor.numpy()` would do, but forbids for ever to resize the tensor's storage. Who gives a
    tensor to a collective may do that later: the batched PowerSGD hook and FSDP do.
    """

    def __init__(self, tensor: Tensor, dtype: np.dtype[Any]) -> None:
        assert tensor.is_cpu and tensor.is_contiguous()  # noqa: PT018
        self._tensor = tensor  # the array keeps this object, and so the memory
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": (tensor.nbytes // dtype.itemsize,),
            "typestr": dtype.str,
            "version": 3,
        }


_BYTE = np.dtype(np.uint8)


def bytes_of(tensor: Tensor) -> Buffer:
    """The bytes of a contiguous tensor on the CPU, where they are."""
    return np.asarray(_Memory(tensor, _BYTE))


def numbers_of(tensor: Tensor) -> Buffer:
    """The numbers of a contiguous tensor on the CPU, where they are, of a type numpy knows.

    >>> numbers_of(torch.tensor([[1, 2], [3, 4]]))
    array([1, 2, 3, 4])
    """
    return np.asarray(_Memory(tensor, _numpy_type(tensor.dtype)))


@cache
def _numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    return cast("np.dtype[Any]", torch.empty(0, dtype=dtype).numpy().dtype)
