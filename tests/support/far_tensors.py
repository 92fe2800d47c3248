"""Tensors that say they are a GPU's, and a device that goes with them, for a machine without one.

Such a tensor has no address and gives no array: what does not go through its device fails.
"""

import torch
from torch.utils._pytree import tree_map

from paceline.torch_backend import devices


class FarTensor(torch.Tensor):
    """A tensor on cuda:0, whose numbers are really those of a tensor nearby."""

    @staticmethod
    def __new__(cls, near):
        return torch.Tensor._make_wrapper_subclass(
            cls, near.shape, strides=near.stride(), dtype=near.dtype, device="cuda:0"
        )

    def __init__(self, near):
        self.near = near

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        near = tree_map(nearby, (arguments, options or {}))
        return tree_map(faraway, function(*near[0], **near[1]))


def faraway(value):
    return FarTensor(value) if type(value) is torch.Tensor else value


def nearby(value):
    return value.near if isinstance(value, FarTensor) else value


class BytesWithAddress(torch.Tensor):
    """Bytes of the host that are shown as a GPU's are."""

    @property
    def __cuda_array_interface__(self):
        place = (self.data_ptr(), False)
        return {"shape": tuple(self.shape), "typestr": "|u1", "data": place, "version": 2}


class FarDevice:
    """Where FarTensors are. It works when the test says so, and passes no mark before."""

    def __init__(self, device=None):
        self.takes_messages = False
        self.future_devices = []  # torch without CUDA knows none
        self.given, self.fetched, self.stored, self.exposed = [], 0, 0, 0

    def mark(self):
        passed = []
        self.given.append(lambda: passed.append(True))
        if len(self.given) == 1:
            self.work()
        return lambda: bool(passed)

    def work(self):
        """Do what was given to it, in turn."""
        while self.given:
            self.given.pop(0)()

    def host_buffer(self, shape, dtype):
        return torch.empty(tuple(shape), dtype=dtype)

    def fetch(self, tensor):
        self.fetched += 1
        return tensor.near.detach().resolve_conj().resolve_neg().clone().contiguous()

    def store(self, tensor, values):
        assert type(values) is torch.Tensor
        self.stored += 1
        tensor.near.copy_(values)

    def expose(self, tensor):
        self.exposed += 1
        flat = tensor.near.detach().reshape(-1).view(torch.uint8)
        return devices.DeviceBytes(flat.as_subclass(BytesWithAddress))


def plug_in():
    """Let FarTensors travel by a new FarDevice, which is returned."""
    device = FarDevice()
    devices._opened[torch.device("cuda:0")] = device
    return device
