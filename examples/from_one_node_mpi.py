"""A synchronous torch.distributed loop for one node, and the same for many.

from_one_node.py starts its own processes and connects them with gloo. from_one_node_mpi.py is the
same on MPI, on any number of nodes; docs/from-one-node-to-many.md shows the difference.

python examples/from_one_node.py
paceline run -n 2 -- examples/from_one_node_mpi.py
"""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.autograd import Variable

import paceline.torch_backend  # noqa: F401


def run(rank, size):
    """Distributed Synchronous SGD Example"""
    torch.manual_seed(1234)
    # Restrict the number of threads that each process uses.
    torch.set_num_threads(1)

    # Random objective.
    data, target = Variable(torch.ones(1, 500).uniform_()), Variable(torch.ones(1, 500).uniform_())
    # Dummy model.
    model = nn.Linear(500, 500)  # y = Wx + b

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)

    for epoch in range(100000):
        output = model(data)
        # MSE loss.
        loss = torch.mean((output - target) ** 2)

        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if rank == 0 and epoch % 100 == 0:
            print(f"Epoch {epoch:,}: {loss.item():.2e}")


def average_gradients(model):
    """Gradient averaging."""
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.reduce_op.SUM)  # This does the communication.
        param.grad.data /= size


if __name__ == "__main__":
    dist.init_process_group("mpi4py")
    run(dist.get_rank(), dist.get_world_size())
