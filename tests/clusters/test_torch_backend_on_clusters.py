"""torch.distributed over two nodes of each cluster, by MPI and by gloo that MPI introduces."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.clusters.cluster import AS_ROOT, Cluster
from support.clusters.slurm import PMIX
from support.letter import MANY, losses, losses_of_gloo, shorten

PROGRAMS = Path(__file__).parents[1] / "mpi" / "programs"
BOTH = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import paceline.torch_backend

world = paceline.init()
dist.init_process_group("gloo", init_method="mpi4py://")
by_mpi = dist.new_group(backend="mpi4py")


def train(group):
    torch.manual_seed(world.rank)
    net = torch.nn.Sequential(torch.nn.Linear(300, 2000), torch.nn.ReLU(), torch.nn.Linear(2000, 5))
    net = DistributedDataParallel(net, process_group=group, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.randn(8, 300)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


mine = train(by_mpi)
torch.testing.assert_close(mine, train(dist.group.WORLD), rtol=1e-6, atol=1e-6)
alike = [torch.empty_like(mine) for _ in range(world.size)]
dist.all_gather(alike, mine, group=by_mpi)
assert all(other.equal(mine) for other in alike)
sums = by_mpi._comms.node_allreduce
assert sums._shown > 0 and sums._cross is not None and len(world.node_ranks) == 2
name = os.environ["GLOO_SOCKET_IFNAME"]
print(f"rank {world.rank} of {world.size} on {world.node} by {name}: alike", flush=True)
dist.destroy_process_group()
"""
"""Two trainings with ranks that have different data; the longer sums go by the nodes' memory."""


def nodes_that_agreed(text: str) -> list[str]:
    """Where the ranks were that found both trainings alike, and none of them over loopback."""
    found = sorted(re.findall(r"rank (\d) of 4 on (\w+) by (\w+): alike", text))
    assert "lo" not in {interface for _, _, interface in found}
    return [node for _, node, _ in found]


@pytest.fixture
def script(request: pytest.FixtureRequest) -> Path:
    """The program, at a place that all hosts of the test's cluster see."""
    kind = next(one for one in ("ssh_hosts", "slurm", "grid_engine") if one in request.fixturenames)
    path = request.getfixturevalue(kind).new_folder("both") / "both.py"
    path.write_text(BOTH)
    return Path(path)


def test_the_program_for_one_node_goes_over_two_hosts(ssh_hosts: Cluster, tmp_path: Path):
    script = shorten(MANY, ssh_hosts.new_folder("letter"))
    # All ranks have the same data; tests/e2e shows that gloo prints the same on several.
    expected = losses_of_gloo(1, tmp_path)
    assert len(expected) == 2
    for hosts in ("host2:1,host3:1", "host2:2,host3:2"):
        done = ssh_hosts.run(["paceline", "run", "--hosts", hosts, "--threads", "1", "--", script])
        assert done.returncode == 0, done.stderr
        assert losses(done.stdout) == expected


def test_ddp_over_two_hosts_in_all_its_modes(ssh_hosts: Cluster):
    script = PROGRAMS / "torch_backend_ddp.py"
    argv = ["paceline", "run", "--hosts", "host2:2,host3:2", "--threads", "1", "--", script]
    done = ssh_hosts.run(argv)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed") == 7
    assert done.stdout.count("DONE") == 4


def test_hosts_agree_by_mpi_and_by_gloo(ssh_hosts: Cluster, script: Path):
    argv = ["paceline", "run", "--hosts", "host2:2,host3:2", "--threads", "1", "--", script]
    done = ssh_hosts.run(argv)
    assert done.returncode == 0, done.stderr
    assert nodes_that_agreed(done.stdout) == ["host2", "host2", "host3", "host3"]


@pytest.mark.parametrize("way", ["mpirun", "srun"])
def test_nodes_of_slurm_agree_by_mpi_and_by_gloo(slurm: Cluster, script: Path, way: str):
    if way == "srun" and not PMIX:
        pytest.skip("Slurm's PMIx plugin needs libpmix.so (libpmix-dev)")
    start = {
        "mpirun": ["mpirun", "-n", "4", "--map-by", "ppr:2:node", "--bind-to", "none", "python"],
        "srun": ["srun", "--mpi=pmix", "python"],
    }[way]
    argv = ["salloc", "-N2", "-n4", "--ntasks-per-node=2", "-Q", *start, script]
    done = slurm.run(argv, env={**AS_ROOT, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert nodes_that_agreed(done.stdout) == ["node1", "node1", "node2", "node2"]


def test_nodes_of_grid_engine_agree_by_mpi_and_by_gloo(grid_engine: Cluster, script: Path):
    argv = ["qrsh", "-now", "n", "-cwd", "-V", "-pe", "mpi", "4", "paceline", "run", "--", script]
    done = grid_engine.run(argv, cwd=grid_engine.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(nodes_that_agreed(done.stdout)) == ["node1", "node1", "node2", "node2"]
