"""A model's arrays as a torch state_dict in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch

from paceline.core.vectors import Vector


class ArrayLike(Protocol):
    """An array as bytes beside the name of its type."""

    @property
    def kind(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def octets(self) -> Vector: ...


def write_state_dict(arrays: Mapping[str, Any], aliases: Mapping[str, str], file: BinaryIO) -> None:
    """Write what `torch.load(file, weights_only=True)` gives back; tied weights share memory."""
    tensors = {name: _tensor(name, array) for name, array in arrays.items()}
    torch.save(tensors | {name: tensors[of] for name, of in aliases.items()}, file)


def _tensor(name: str, array: ArrayLike) -> torch.Tensor:
    kind = getattr(torch, array.kind, None)
    if not isinstance(kind, torch.dtype):
        raise TypeError(f"'{name}' is {array.kind}, which torch does not know")
    if not array.octets.size:
        return torch.empty(array.shape, dtype=kind)
    return torch.from_numpy(np.array(array.octets)).view(kind).reshape(array.shape)
