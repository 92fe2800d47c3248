"""A run over several hosts goes on when ranks or a host are lost."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest
from support.clusters.cluster import HANG_S, Cluster, wait_for
from support.clusters.clusters import Clusters
from support.clusters.submit_checks import DIGITS, has_steps
from support.loop_logs import Logs, kept_of_the_lost
from support.ranks import TESTS

RANK = re.compile(r"-m paceline train ")
HOSTS = ("--hosts", "host1:2,host2:2,host3:1")


@pytest.mark.parametrize("rule", ["bsp", "average", "easgd"])
def test_ranks_of_other_hosts_are_lost(ssh_hosts: Cluster, rule: str) -> None:
    """One of two on its host, and one that was alone."""
    place = ssh_hosts.new_folder(f"elastic-{rule}")
    with (place / "log").open("w") as log:
        words = ("train", *DIGITS, *HOSTS, "--elastic", "--rule", rule, "--epochs", "4")
        settings = ("--threads", "1", "--batch-size", "50", "--run-dir", "run")
        run = ssh_hosts.start(
            ["paceline", *words, *settings], cwd=place, stdout=log, stderr=log,
            env={"SLOW_S": "0.03"},
        )  # fmt: skip
    try:
        wait_for("the first step", lambda: has_steps(place / "run"))
        for host, name in ((1, "host2"), (2, "host3")):
            pids = [p for p, line in ssh_hosts.processes(host).items() if RANK.search(line)]
            os.kill(pids[0], signal.SIGKILL)
            wait_for("the loss to be told", lambda n=name: f"({n}) was lost" in read(place))
        assert run.wait(HANG_S) == 0, read(place)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    assert "going on after step" in read(place)
    found = ssh_hosts.tell("paceline", "events", "check", str(place / "run"))
    assert "every sample was used once in each epoch" in found
    accuracy = re.findall(r"val accuracy (\S+) %", read(place))[-1]
    assert float(accuracy) > 80


def read(place) -> str:
    return (place / "log").read_text()


@pytest.mark.parametrize("overlap", [None, True])
def test_a_loop_of_ones_own_loses_ranks_of_other_hosts(ssh_hosts: Cluster, overlap: bool) -> None:
    """One that was alone on its host, before the step, and one while parameters are moved."""
    place = ssh_hosts.new_folder(f"elastic-loop-{overlap}")
    script = place / "loop.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
        "from mpi.programs import elastic_loop; elastic_loop.main()\n"
    )
    faults = [f"sigkill:rank={rank}" for rank in ("4,step=3,at=before", "2,step=5,at=moving")]
    given = {"rule": "bsp", "samples": 100, "epochs": 2, "folder": str(place), "faults": faults}
    given |= {"clip_norm": 1.0, "exchange": {"overlap": overlap}}
    words = ("run", "--elastic", *HOSTS, "--", str(script), json.dumps(given))
    with (place / "stderr").open("w") as log:
        run = ssh_hosts.start(["paceline", *words], cwd=place, stdout=log, stderr=log)
    try:
        assert run.wait(HANG_S) == 0, (place / "stderr").read_text()
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    logs = Logs(place, [4, 2], (place / "stderr").read_text())
    assert kept_of_the_lost(logs, 0, 100) == {4: 2, 2: logs.taken(2, 0) + 1}
    assert kept_of_the_lost(logs, 1, 100) == {4: 0, 2: 0}
    assert len({entry["end"] for entry in logs.ends}) == 1
    assert len(logs.ends) == 3


def test_a_host_is_lost_and_the_others_start_again(clusters: Clusters) -> None:
    with clusters.lend("ssh_hosts") as hosts:
        place = hosts.new_folder("elastic-host")
        with (place / "log").open("w") as log:
            words = ("train", *DIGITS, *HOSTS, "--elastic", "--checkpoint-every", "20")
            settings = ("--threads", "1", "--epochs", "4", "--batch-size", "50", "--run-dir", "run")
            run = hosts.start(
                ["paceline", *words, *settings], cwd=place, stdout=log, stderr=log,
                env={"SLOW_S": "0.05"},
            )  # fmt: skip
        try:
            saves = place / "run" / "checkpoints"
            wait_for("a checkpoint", lambda: saves.exists() and any(saves.glob("step-*")))
            hosts.kill_host(1)
            assert run.wait(HANG_S) == 0, read(place)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
            hosts.revive(1)
        assert "host host2 was lost" in read(place)
        assert "starting again from the last checkpoint, with 3 ranks" in read(place)
        assert "resuming" in read(place)
