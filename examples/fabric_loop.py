"""A Lightning Fabric loop over MPI.

paceline run -n 2 -- examples/fabric_loop.py

Needs: pip install lightning-fabric
"""

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import MPIEnvironment
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import paceline.torch_backend  # noqa: F401
from paceline.data import digits
from paceline.models.mnist import MNISTNetwork


def load(part: str) -> TensorDataset:
    images, labels = digits.load(part).arrays()
    return TensorDataset(torch.from_numpy(digits.normalise(images)), torch.from_numpy(labels))


dist.init_process_group("mpi4py")
rank, ranks = dist.get_rank(), dist.get_world_size()
fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp", plugins=MPIEnvironment())
fabric.launch()

model = MNISTNetwork()
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
batches = fabric.setup_dataloaders(DataLoader(load("train"), batch_size=64, shuffle=True))
for epoch in range(2):
    batches.sampler.set_epoch(epoch)
    for images, labels in batches:  # this rank's shard
        optimizer.zero_grad()
        fabric.backward(cross_entropy(model(images), labels))
        optimizer.step()

model.eval()
images, labels = load("validation").tensors
with torch.no_grad():
    loss = cross_entropy(model(images), labels).item()
share = f"{len(batches)} batches per epoch"
print(f"rank {rank} of {ranks} over {dist.get_backend()}, {share}: loss {loss:.6f}")
