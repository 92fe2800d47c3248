"""Sums of sparse tensors, such as the gradients of an embedding with `sparse=True`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from paceline.comm.nonblocking.async_comm import AsyncComms, Steps
from paceline.errors import WorldError
from paceline.torch_backend.collectives import all_gather_single, exchange

_SUMS = (ReduceOp.RedOpType.SUM, ReduceOp.RedOpType.AVG)


def check_sparse(tensors: list[Tensor], kind: ReduceOp.RedOpType) -> None:
    """Refuse what cannot be summed, before anything starts."""
    for tensor in tensors:
        if tensor.layout != torch.sparse_coo or not tensor.is_cpu:
            raise WorldError(
                f"all_reduce: a tensor is {tensor.layout} on {tensor.device}; sparse tensors must "
                "be torch.sparse_coo on the CPU. Use .to_dense()"
            )
    if kind not in _SUMS:
        asked = str(kind).rpartition(".")[2]
        raise WorldError(f"all_reduce: sparse tensors support SUM and AVG, not {asked}")


def sum_sparse(
    comms: AsyncComms, tensors: list[Tensor], kind: ReduceOp.RedOpType
) -> Steps[list[Tensor]]:
    """Overwrite every rank's tensors with the sum, or the average, over all ranks."""
    for tensor in tensors:
        total = yield from _sum(comms, tensor.detach().coalesce())
        if kind == ReduceOp.RedOpType.AVG:
            total = total / comms.collective_comm.size
        total = total.to(tensor.dtype)
        plainly = torch.inference_mode() if tensor.is_inference() else torch.no_grad()
        with plainly:  # a detached tensor would not pass new indices on to its origin
            tensor.copy_(total)
    return tensors


def _sum(comms: AsyncComms, mine: Tensor) -> Steps[Tensor]:
    """Gather all ranks' entries on each rank and add them in the order of ranks: same bits.

    Half precision is summed in float32, and returned as float32.
    """
    comm, dtype = comms.collective_comm, mine.dtype
    counts = torch.zeros(comm.size, dtype=torch.int64)
    yield from all_gather_single(comms, counts, torch.tensor([mine.indices().shape[1]]))
    indices = [
        torch.empty(mine.sparse_dim(), count, dtype=torch.int64) for count in counts.tolist()
    ]
    values = [mine.values().new_empty(count, *mine.values().shape[1:]) for count in counts.tolist()]
    yield from exchange(comm, [mine.indices()] * comm.size, indices)
    yield from exchange(comm, [mine.values()] * comm.size, values)
    wide = torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype
    entries = torch.cat(indices, 1), torch.cat(values).to(wide)
    total = torch.sparse_coo_tensor(*entries, mine.shape, check_invariants=False)
    return total.coalesce()
