"""Training over two nodes of each cluster, as a user starts it there."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import clean_environment

from clusters.cluster import Cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KINDS = ("ssh_hosts", "slurm", "grid_engine")
BEGIN = {
    "ssh_hosts": (),
    "slurm": ("submit", "slurm", "--nodes", "2", "--wait", "--"),
    "grid_engine": ("submit", "sge", "--nodes", "2", "--wait", "--"),
}
"""What comes before the command, from one rank to one on each of two nodes."""
HOSTS = {"ssh_hosts": ("--hosts", "host2:1,host3:1")}
"""Not the host it is started from: a laptop, or a login node."""


@pytest.fixture(params=KINDS)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Cluster)
    return found


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["cluster"])


@functools.cache
def accuracy_on_one_node(rule: str) -> float:
    """What two ranks of this machine reach, for rules that repeat themselves."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [*command(rule), "-n", "2", "--run-dir", f"{folder}/run"]
        subprocess.run(argv, env=clean_environment(), check=True, capture_output=True, timeout=120)
        return float(json.loads(Path(folder, "run/summary.json").read_text())["val_accuracy"])


def command(rule: str, *begin: str) -> list[str]:
    program = str(Path(sys.executable).with_name("paceline"))
    # Where workers go at their own pace, how stale gradients are depends on the machine's load.
    epochs = "3" if rule in ("bsp", "average") else "5"
    settings = ("--threads", "1", "--rule", rule, "--epochs", epochs)
    return [program, *begin, "train", "mnist", *settings]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rule", ["bsp", "average", "easgd", "downpour"])
def test_the_digits_are_learned_over_two_nodes(cluster: Cluster, kind: str, rule: str):
    place = cluster.folder / f"digits-{kind}-{rule}"
    place.mkdir()
    argv = [*command(rule, *BEGIN[kind]), *HOSTS.get(kind, ()), "--run-dir", "run"]
    done = cluster.run(argv, cwd=place, timeout_s=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks on 2 nodes" in done.stdout
    summary = json.loads((place / "run" / "summary.json").read_text())
    assert summary["ranks"] == 2
    if rule in ("bsp", "average"):
        assert summary["val_accuracy"] == pytest.approx(accuracy_on_one_node(rule), abs=0.005)
    assert summary["val_accuracy"] >= 0.94
    left = [cluster.shared_memory(host) for host in range(len(cluster.names))]
    assert not any(name.startswith("paceline") for names in left for name in names)


@pytest.mark.timeout(120)
def test_a_loop_of_ones_own_goes_over_two_nodes(cluster: Cluster, kind: str):
    place = cluster.folder / f"own-{kind}"
    place.mkdir()
    done = cluster.run(
        [
            *("paceline", *BEGIN[kind], "run", *HOSTS.get(kind, ())),
            *("--threads", "1", "--", EXAMPLES / "linear.py", "201"),
        ],
        cwd=place,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    nodes = re.findall(r"rank \d of 2 on (\S+): loss", done.stdout)
    assert sorted(nodes) == (["host2", "host3"] if kind == "ssh_hosts" else ["node1", "node2"])
    losses = [float(loss) for loss in re.findall(r"step [\d,]+: (\S+)", done.stdout)]
    assert len(losses) == 3
    assert losses[2] < losses[0] / 10
