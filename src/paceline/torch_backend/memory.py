"""The memory of tensors as numpy arrays, without side effects on the tensors."""

from __future__ import annotations

from functools import cache
from typing import cast

import numpy as np
import torch
from torch import Tensor

from paceline.comm import Buffer


class _Memory:
    """A tensor's memory, exposed through numpy's array interface.

    `Tensor.numpy()` would do, but makes the tensor's storage non-resizable forever. Programs may
    resize it after a collective: the batched PowerSGD hook and FSDP do.
    """

    def __init__(self, tensor: Tensor, dtype: np.dtype[np.generic]) -> None:
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
    """The bytes of a contiguous tensor on the CPU, in place."""
    return np.asarray(_Memory(tensor, _BYTE))


def numbers_of(tensor: Tensor) -> Buffer:
    """The numbers of a contiguous tensor on the CPU, in place, of a type that numpy knows.

    >>> numbers_of(torch.tensor([[1, 2], [3, 4]]))
    array([1, 2, 3, 4])
    """
    return np.asarray(_Memory(tensor, _numpy_type(tensor.dtype)))


@cache
def _numpy_type(dtype: torch.dtype) -> np.dtype[np.generic]:
    return cast("np.dtype[np.generic]", torch.empty(0, dtype=dtype).numpy().dtype)
