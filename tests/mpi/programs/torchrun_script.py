"""A script for torchrun, which knows nothing of Paceline: `torchrun_script.py [WHAT]`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


def listening() -> list[str]:
    """Where this process listens, ADDRESS:PORT as the kernel writes them."""
    own = {str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [row.split() for table in tables for row in table.splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]


def train(rank: int, size: int) -> float:
    torch.manual_seed(3)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    samples = torch.randn(16, 4)[rank::size]
    for _ in range(5):
        optimizer.zero_grad()
        loss = (model(samples) - samples.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    total = loss.detach()
    dist.all_reduce(total)
    return total.item()


def raise_while_busy(rank: int) -> None:
    """While sums are under way, of whose ends gloo's threads tell Python.

    They ask for the interpreter when a rank that raises may have taken it down: then native code
    would give up (SIGABRT).
    """
    works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(200)]
    for work in works:
        work.get_future().then(lambda _: None)
    if rank == 1:
        raise ValueError("not my day")
    for work in works:
        work.wait()
    dist.barrier()


def start_torchrun(rank: int) -> None:
    """What a rank starts by itself: two processes of a torchrun of its own."""
    here = Path(sys.executable).parent / "torchrun"
    argv = [here, "--standalone", "--nproc-per-node=2", __file__, "short"]
    if rank == 0:
        subprocess.run(argv, check=True, timeout=80)


@record
def main(what: str = "train") -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if what == "nest":
        start_torchrun(rank)
        return
    if what == "tcp":  # as scripts did before env:// was the default
        where = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=size)
    elif what == "short":
        dist.init_process_group()
    else:
        dist.init_process_group("gloo")
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    loss = train(rank, size)
    if what == "fail" and rank == 1:
        sys.exit(7)
    said = {name: os.environ.get(name) for name in TOLD} | {
        "address": os.environ.get("MASTER_ADDR"),
        "port": os.environ.get("MASTER_PORT"),
        "gloo": os.environ.get("GLOO_SOCKET_IFNAME"),
        "listens": sorted({where.split(":")[0] for where in listening()}),
        "host": os.uname().nodename,
        "mpi": "mpi4py.MPI" in sys.modules,
        "loss": loss,
    }
    os.write(1, json.dumps(said).encode() + b"\n")
    dist.barrier()
    if what == "raise":
        raise_while_busy(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
