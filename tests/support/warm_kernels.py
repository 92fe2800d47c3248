"""Ranks that are threads of one process."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def warm_kernels():
    """The first products of a process, in two threads at once, may differ in their last bits."""
    for rows in (1, 4, 64):
        layer = torch.nn.Sequential(torch.nn.Linear(3, 37), torch.nn.Tanh(), torch.nn.Linear(37, 1))
        layer(torch.ones(rows, 3)).sum().backward()
