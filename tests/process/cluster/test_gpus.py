"""nvidia-smi, which really runs."""

import os

import pytest
from support.gpu_nodes import a_node

from paceline.cluster import gpus
from paceline.cluster.gpus import find_gpus


def a_tool(folder, script):
    """An nvidia-smi that does this; the environment that leads to it."""
    folder.mkdir()
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.defpath}"}


def test_the_tool_is_asked_where_the_driver_shows_no_list(tmp_path):
    env = a_tool(
        tmp_path / "bin",
        "echo 'GPU 0: A100 (UUID: GPU-8932f937)'\n"
        "echo '  MIG 1g.5gb Device 0: (UUID: MIG-ab12)'\n"
        "echo 'GPU 1: A100 (UUID: GPU-1d2a)'",
    )
    assert find_gpus(env, a_node(tmp_path, files=4)) == ("0", "1")


@pytest.mark.parametrize("script", ["exit 9", "exec sleep 60"])
def test_a_tool_that_fails_or_hangs_leaves_the_device_files(tmp_path, monkeypatch, script):
    monkeypatch.setattr(gpus, "_TIMEOUT_S", 0.2)
    env = a_tool(tmp_path / "bin", script)
    assert find_gpus(env, a_node(tmp_path, files=3)) == ("0", "1", "2")


def test_without_gpus_no_tool_is_started(tmp_path):
    env = a_tool(tmp_path / "bin", f"touch {tmp_path}/started")
    assert find_gpus(env, a_node(tmp_path)) == ()
    assert not (tmp_path / "started").exists()
