"""Training over two nodes of each cluster, as a user starts it there."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.clusters.cluster import HANG_S, Cluster
from support.clusters.submit_checks import DIGITS
from support.ranks import clean_environment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PACELINE = str(Path(sys.executable).with_name("paceline"))
KINDS = ("ssh_hosts", "slurm", "grid_engine")
BEGIN = {
    "ssh_hosts": (),
    "slurm": ("submit", "slurm", "--nodes", "2", "--wait", "--"),
    "grid_engine": ("submit", "sge", "--nodes", "2", "--wait", "--"),
}
"""What comes before the command, from one rank to one on each of two nodes."""
HOSTS = {"ssh_hosts": ("--hosts", "host2:1,host3:1")}
"""Not the host it is started from: a laptop, or a login node."""
REPEATABLE = ("bsp", "average")
"""Other rules depend on who comes first."""

NETWORK = ("mnist", "--epochs", "1")
LINEAR = (*DIGITS, "--epochs", "3")


@pytest.fixture(params=KINDS)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Cluster)
    return found


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["cluster"])


def train(cluster: Cluster, kind: str, words: Sequence[str], rule: str) -> dict[str, Any]:
    """Train on two nodes; the summary of the run."""
    place = cluster.new_folder(f"train-{rule}")
    options = ("--threads", "1", "--rule", rule, "--run-dir", "run", *HOSTS.get(kind, ()))
    done = cluster.run([PACELINE, *BEGIN[kind], "train", *words, *options], cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks on 2 nodes" in done.stdout
    assert (place / "run" / "job.sh").exists() == (kind != "ssh_hosts")
    memory = [name for host in range(len(cluster.names)) for name in cluster.shared_memory(host)]
    assert not [name for name in memory if name.startswith("paceline")]
    summary: dict[str, Any] = json.loads((place / "run" / "summary.json").read_text())
    assert summary["ranks"] == 2
    assert summary["samples"] == 10_000 * summary["epochs"]
    return summary


@functools.cache
def train_on_one_node(words: Sequence[str], rule: str) -> dict[str, Any]:
    """The same on two ranks of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("--threads", "1", "--rule", rule, "-n", "2", "--run-dir", f"{folder}/run")
        argv = [PACELINE, "train", *words, *options]
        subprocess.run(
            argv, env=clean_environment(), check=True, capture_output=True, timeout=HANG_S
        )
        summary: dict[str, Any] = json.loads(Path(folder, "run/summary.json").read_text())
        return summary


@pytest.mark.parametrize("rule", ["bsp", "average", "easgd", "downpour"])
def test_every_rule_trains_over_two_nodes(cluster: Cluster, kind: str, rule: str):
    summary = train(cluster, kind, LINEAR, rule)
    if rule in REPEATABLE:
        assert summary["val_loss"] == pytest.approx(
            train_on_one_node(LINEAR, rule)["val_loss"], rel=1e-4
        )
    assert summary["val_accuracy"] > 0.8


def test_the_network_learns_the_digits_over_two_nodes(cluster: Cluster, kind: str):
    summary = train(cluster, kind, NETWORK, "bsp")
    expected = train_on_one_node(NETWORK, "bsp")
    assert summary["val_accuracy"] == pytest.approx(expected["val_accuracy"], abs=0.005)
    assert summary["val_accuracy"] > 0.9


def test_the_network_learns_at_the_pace_of_each_host(ssh_hosts: Cluster):
    summary = train(ssh_hosts, "ssh_hosts", NETWORK, "downpour")
    assert summary["val_accuracy"] > 0.6  # how stale gradients are depends on the machine's load


def test_a_loop_of_ones_own_goes_over_two_nodes(cluster: Cluster, kind: str):
    done = cluster.run(
        [
            *("paceline", *BEGIN[kind], "run", *HOSTS.get(kind, ())),
            *("--threads", "1", "--", EXAMPLES / "linear.py", "201"),
        ],
        cwd=cluster.new_folder("own"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    nodes = re.findall(r"rank \d of 2 on (\S+): loss", done.stdout)
    assert sorted(nodes) == (["host2", "host3"] if kind == "ssh_hosts" else ["node1", "node2"])
    losses = [float(loss) for loss in re.findall(r"step [\d,]+: (\S+)", done.stdout)]
    assert len(losses) == 3
    assert losses[2] < losses[0] / 10
