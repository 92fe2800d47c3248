"""A Hugging Face accelerate loop over MPI.

paceline run -n 2 -- examples/accelerate_loop.py

Needs: pip install accelerate
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import paceline.torch_backend  # noqa: F401
from paceline.data import digits
from paceline.models.mnist import MNISTNetwork


def load(part: str) -> TensorDataset:
    images, labels = digits.load(part).arrays()
    return TensorDataset(torch.from_numpy(digits.normalise(images)), torch.from_numpy(labels))


dist.init_process_group("mpi4py")
accelerator = Accelerator(cpu=True)  # uses the existing process group

model = MNISTNetwork()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
batches = DataLoader(load("train"), batch_size=64, shuffle=True)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
for _ in range(2):
    for images, labels in batches:  # this rank's shard
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(images), labels))
        optimizer.step()

accelerator.wait_for_everyone()
model.eval()
images, labels = load("validation").tensors
with torch.no_grad():
    loss = cross_entropy(model(images), labels).item()
rank, ranks = dist.get_rank(), dist.get_world_size()
share = f"{len(batches)} batches per epoch"
print(f"rank {rank} of {ranks} over {dist.get_backend()}, {share}: loss {loss:.6f}")
