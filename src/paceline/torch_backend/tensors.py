"""Tensors as arrays that MPI reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.comm import Buffer
from paceline.errors import WorldError
from paceline.torch_backend.devices import KINDS, Device, device_of
from paceline.torch_backend.memory import bytes_of


def check(tensors: Sequence[Tensor], what: str) -> list[Device]:
    """Refuse what cannot be sent, before anything starts; return the devices of the tensors."""
    devices: list[Device] = []
    for tensor in tensors:
        if not tensor.is_cpu:
            if tensor.device.type not in KINDS:
                raise WorldError(
                    f"{what}: a tensor is on {tensor.device}, and the mpi4py backend supports "
                    f"cpu and {', '.join(KINDS)}; use .cpu()"
                )
            device = device_of(tensor)
            if device not in devices:
                devices.append(device)
        if tensor.layout != torch.strided:
            raise WorldError(f"{what}: a tensor is {tensor.layout}; use .to_dense()")
    return devices


def raw(tensor: Tensor) -> Buffer:
    """The bytes of a contiguous tensor, in place."""
    return bytes_of(tensor)


class Outgoing:
    """The bytes of a tensor to send: its own, or those of a contiguous copy on the host."""

    def __init__(self, tensor: Tensor, by_message: bool = False) -> None:
        """`by_message`: it is sent as an MPI message, and MPI may read the device's memory."""
        exposed = None if tensor.is_cpu or not by_message else _expose(tensor)
        self.bytes = raw(plain(tensor)) if exposed is None else exposed


class ReceiveBuffer:
    """Memory to receive a tensor's bytes in: its own, or a buffer on the host."""

    def __init__(self, tensor: Tensor, keep: bool = False, by_message: bool = False) -> None:
        """`keep`: start with the tensor's values; `by_message` as for Outgoing."""
        self.tensor = tensor
        exposed = None if tensor.is_cpu or not by_message else _expose(tensor)
        if exposed is not None:
            self._host, self.bytes = tensor, exposed
            return
        as_it_is = tensor.is_cpu and _is_plain(tensor)
        self._host = tensor if as_it_is else plain(tensor) if keep else host_buffer_for(tensor)
        self.bytes = raw(self._host)

    def copy_back(self) -> None:
        """Copy what was received to the tensor, if it is not there already."""
        if self._host is not self.tensor:
            write(self.tensor, self._host)


def plain(tensor: Tensor) -> Tensor:
    """The tensor on the host, contiguous and without lazy conjugation; itself if it is all that."""
    if not tensor.is_cpu:
        return device_of(tensor).fetch(tensor)
    if _is_plain(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def write(tensor: Tensor, values: Tensor) -> None:
    """Overwrite a tensor with one on the host, unseen by autograd and inference mode."""
    if tensor.is_inference():
        with torch.inference_mode():
            _copy(tensor, values.view(tensor.shape))
    else:
        with torch.no_grad():
            _copy(tensor.detach(), values.view(tensor.shape))


def host_buffer_for(
    tensor: Tensor, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Host memory for a tensor's values: of its shape and type, or of these."""
    shape = tensor.shape if shape is None else shape
    if tensor.is_cpu:
        return torch.empty(tuple(shape), dtype=dtype or tensor.dtype)
    return device_of(tensor).host_buffer(shape, dtype or tensor.dtype)


def _copy(tensor: Tensor, values: Tensor) -> None:
    if tensor.is_cpu:
        tensor.copy_(values)
    else:
        device_of(tensor).store(tensor, values)


def _is_plain(tensor: Tensor) -> bool:
    return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def _expose(tensor: Tensor) -> Buffer | None:
    """The bytes of a device's tensor in place, if MPI reads and writes there."""
    device = device_of(tensor)
    return device.expose(tensor) if device.takes_messages and _is_plain(tensor) else None


def describe(tensors: list[Tensor]) -> str:
    """Describe tensors for an error message.

    >>> describe([torch.zeros(2, 3)])
    '6 x float32'
    """
    return ", ".join(f"{tensor.numel()} x {name_of(tensor.dtype)}" for tensor in tensors[:3]) + (
        ", ..." if len(tensors) > 3 else ""
    )


def name_of(dtype: torch.dtype) -> str:
    """A type's name without its module."""
    return str(dtype).removeprefix("torch.")
