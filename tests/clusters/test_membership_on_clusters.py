"""Ranks join a run and leave it, on other hosts and in jobs of schedulers."""

from __future__ import annotations

import re
import subprocess

import pytest
from support.clusters.cluster import HANG_S, Cluster, wait_for
from support.clusters.submit_checks import DIGITS, PACELINE, ended, has_steps

BEGIN = {
    "ssh_hosts": (),
    "slurm": ("submit", "slurm", "--nodes", "2", "--env", "SLOW_S=0.2", "--wait", "--"),
    "grid_engine": ("submit", "sge", "--nodes", "2", "--env", "SLOW_S=0.2", "--wait", "--"),
}
HOSTS = {"ssh_hosts": ("--hosts", "host1:1,host2:1,host3:1", "-n", "2")}
"""Elsewhere those of the allocation."""
JOINS = {"ssh_hosts": ("--hosts", "host3:1"), "slurm": ("-n", "1"), "grid_engine": ("-n", "1")}
LEAVES = {"ssh_hosts": "host2", "slurm": "node2", "grid_engine": "node2"}
SETTINGS = ("--elastic", "--epochs", "60", "--batch-size", "100", "--threads", "1")


@pytest.mark.parametrize("kind", list(BEGIN))
def test_ranks_join_and_leave(kind: str, request: pytest.FixtureRequest) -> None:
    """One joins; all of another host leave; it is scaled back. The run goes on until it is told
    to be fast, and ends well."""
    cluster: Cluster = request.getfixturevalue(kind)
    place = cluster.new_folder("membership")
    words = (*BEGIN[kind], "train", *DIGITS, *SETTINGS, "--run-dir", "run", *HOSTS.get(kind, ()))
    with (place / "log").open("w") as log:
        started = cluster.start(
            [PACELINE, *words], cwd=place, stdout=log, stderr=log, env={"SLOW_S": "0.2"}
        )
        with ended(started) as run:
            wait_for("the first step", lambda: has_steps(place / "run"))
            asked = [
                change(cluster, place, "join", "run", *JOINS[kind]),
                change(cluster, place, "leave", "run", "--host", LEAVES[kind]),
                change(cluster, place, "scale", "run", "-n", "2"),  # as they are
                change(cluster, place, "scale", "run", "-n", "3"),
            ]
            (place / "fast").touch()
            code = run.wait(HANG_S)
    said = (place / "log").read_text()
    assert code == 0, said
    assert all(done.returncode == 0 for done in asked), asked
    assert "rank 2 joined; there are 3 ranks now" in asked[0].stdout
    told = "".join(file.read_text() for file in (place / "run").glob("job-*.log")) + said
    assert re.search(rf"rank\S* .*\({LEAVES[kind]}\) left; going on", told), told
    checked = cluster.tell(PACELINE, "events", "check", str(place / "run"))
    assert "every sample was used once in each epoch" in checked
    assert "0 ranks lost" in checked
    cluster.check_nothing_is_left(range(1, len(cluster.names)))


def change(cluster: Cluster, place, *words: str) -> subprocess.CompletedProcess[str]:
    return cluster.run([PACELINE, *words], cwd=place)
