"""The clusters that a session of tests has up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.clusters.cluster import Cluster, why_not
from support.clusters.grid_engine import grid_engine
from support.clusters.slurm import slurm
from support.clusters.ssh_hosts import ssh_hosts

MAKERS = {"ssh_hosts": ssh_hosts, "slurm": slurm, "grid_engine": grid_engine}


class Clusters:
    """The clusters that are up, by kind; several threads may ask for different ones."""

    def __init__(self) -> None:
        self._up: dict[str, Cluster] = {}

    def get(self, kind: str) -> Cluster:
        """The cluster of that kind, which is brought up if it is not."""
        if kind not in self._up:
            cluster = MAKERS[kind]()
            if reason := why_not(cluster.service):
                pytest.skip(reason)
            self._up[kind] = cluster.__enter__()
        return self._up[kind]

    @contextmanager
    def lend(self, kind: str) -> Iterator[Cluster]:
        """The same; what a failure inside leaves behind is taken down with the cluster."""
        cluster = self.get(kind)
        try:
            yield cluster
        except BaseException:
            self.end(kind)
            raise

    def end(self, kind: str) -> None:
        """Take it down; who asks next gets a new one."""
        self._up.pop(kind).__exit__(None, None, None)

    def end_all(self) -> None:
        for kind in list(self._up):
            self.end(kind)
