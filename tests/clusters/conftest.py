"""The clusters, each made once for all tests, where this machine can make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusters.cluster import Cluster, why_not
from clusters.grid_engine import grid_engine as make_grid_engine
from clusters.slurm import slurm as make_slurm
from clusters.ssh_hosts import ssh_hosts as make_ssh_hosts

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder is one of clusters."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker("clusters")


@pytest.fixture(scope="session")
def ssh_hosts() -> Iterator[Cluster]:
    """host1, host2 and host3, with sshd."""
    yield from _bring_up(make_ssh_hosts)


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """login, node1 and node2, with Slurm."""
    yield from _bring_up(make_slurm)


@pytest.fixture(scope="session")
def grid_engine() -> Iterator[Cluster]:
    """login, node1 and node2, with Grid Engine."""
    yield from _bring_up(make_grid_engine)


def _bring_up(make: Callable[[], Cluster]) -> Iterator[Cluster]:
    cluster = make()
    reason = why_not(cluster.service)
    if reason:
        pytest.skip(reason)
    with cluster:
        yield cluster
