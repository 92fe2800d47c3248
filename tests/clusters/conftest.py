"""The clusters, each made once for all tests that pass, where this machine can make them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from support.clusters.cluster import HANG_S, Cluster
from support.clusters.clusters import Clusters

FOLDER = Path(__file__).parent
FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder is one of clusters, and may wait for more than one thing."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker("clusters")
            item.add_marker(pytest.mark.timeout(3 * HANG_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note on the test that it has failed, for the fixtures that end after it."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    """Those that tests have asked for, until the last test has ended."""
    made = Clusters()
    yield made
    made.end_all()


def _lend(kind: str, clusters: Clusters, node: pytest.Item) -> Iterator[Cluster]:
    """What a test that fails leaves behind is no matter of the next, which gets a new cluster."""
    yield clusters.get(kind)
    if node.stash.get(FAILED, False):
        clusters.end(kind)


@pytest.fixture
def ssh_hosts(clusters: Clusters, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """host1, host2 and host3, with sshd."""
    yield from _lend("ssh_hosts", clusters, request.node)


@pytest.fixture
def slurm(clusters: Clusters, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """login, node1 and node2, with Slurm."""
    yield from _lend("slurm", clusters, request.node)


@pytest.fixture
def grid_engine(clusters: Clusters, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """login, node1 and node2, with Grid Engine."""
    yield from _lend("grid_engine", clusters, request.node)
