"""What ranks find in their environment, for scripts that were written for torchrun."""

import socket
from pathlib import Path

import pytest

from paceline.cluster.detect import Environment, detect
from paceline.cluster.identity import JOB_DIR
from paceline.errors import LaunchError
from paceline.runtime.torchrun import env as introduction
from paceline.runtime.torchrun.env import (
    describe_rank,
    is_on_one_node,
    name_interface,
    set_torchrun_env,
)

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}


@pytest.fixture(autouse=True)
def held(monkeypatch):
    """The sockets that rank 0 holds, closed after the test."""
    sockets: list[socket.socket] = []
    monkeypatch.setattr(introduction, "_held", sockets)
    yield sockets
    for one in sockets:
        one.close()


def rank(number, size, local, local_size, kind="openmpi"):
    return Environment(kind, number, size, local, local_size, launched=True)


@pytest.mark.parametrize(
    ("environment", "env", "numbers"),
    [
        (rank(1, 2, 1, 2), {}, "1 2 1 2 0 1"),
        (rank(2, 3, 0, 1), {"PACELINE_RANKS_PER_HOST": "2,1"}, "2 3 0 1 1 2"),
        (rank(1, 3, 1, 2), {"PACELINE_RANKS_PER_HOST": "2,1"}, "1 3 1 2 0 2"),
        (rank(1, 3, 0, 1), {"PACELINE_RANKS_PER_HOST": "2,1"}, "1 3 0 1 - -"),  # other order
        (rank(2, 3, 0, 1), {}, "2 3 0 1 - -"),
        (
            rank(2, 3, 0, 1, "slurm-step"),
            {"SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2"},
            "2 3 0 1 1 2",
        ),
        (rank(None, 2, None, None, "none"), {}, "- 2 - - - -"),
        (Environment("slurm-batch", None, 4, None, None, launched=False), {}, "0 1 0 1 0 1"),
        (Environment("none", None, 1, None, None, launched=False), {}, "0 1 0 1 0 1"),
    ],
)
def test_ranks_are_told_what_torchrun_tells_as_far_as_it_is_known(environment, env, numbers):
    told = {name: n for name, n in zip(NAMES, numbers.split(), strict=True) if n != "-"}
    assert describe_rank(environment, env) == told


def test_detection_is_not_confused_by_them_nor_by_a_torchrun_around_us():
    env = OPEN_MPI | {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "1", "RANK": "0"}
    before = detect(env)
    set_torchrun_env(before, env)
    assert detect(env) == before == rank(2, 3, 0, 1)
    assert env["RANK"] == "2"
    assert not is_on_one_node(env)


def test_torchruns_own_processes_stay_its_own(held):
    told = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    env = told | {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
    before = dict(env)
    set_torchrun_env(detect(env), env)
    assert before.items() <= env.items()
    assert held == []


def test_rank_0_alone_holds_the_port_that_was_chosen(held):
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = str(found.getsockname()[1])
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    chosen = {"PACELINE_MASTER": f"127.0.0.1 {port}"}
    set_torchrun_env(rank(0, 2, 0, 2), dict(env))  # the user's: not our business
    set_torchrun_env(rank(1, 2, 1, 2), env | chosen)
    assert held == []
    set_torchrun_env(rank(0, 2, 0, 2), env | chosen)
    assert [one.getsockname() for one in held] == [("127.0.0.1", int(port))]


def test_a_port_that_is_taken_is_named_and_the_launcher_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv(JOB_DIR, str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env["PACELINE_MASTER"] = f"127.0.0.1 {port}"
        with pytest.raises(LaunchError, match=rf"MASTER_PORT {port} .* on {socket.gethostname()}"):
            set_torchrun_env(rank(0, 2, 0, 2), env)
    assert Path(tmp_path, "port.taken").read_text() == port


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "lo"),
        ({"GLOO_SOCKET_IFNAME": "e"}, "e"),
        ({"GLOO_SOCKET_IFNAME": "e", "PACELINE_INTERFACE": "e"}, "lo"),  # of one around us
    ],
)
def test_gloo_stays_inside_on_one_node_unless_the_user_says_otherwise(given, expected):
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7", **given}
    set_torchrun_env(rank(1, 2, 1, 2), env)
    assert env["GLOO_SOCKET_IFNAME"] == expected
    assert is_on_one_node(env)
    name_interface(env, "found")  # what mpi4py:// has tried counts for more than our guess
    assert env["GLOO_SOCKET_IFNAME"] == ("found" if expected == "lo" else expected)


def test_who_was_not_told_where_to_meet_is_not_told_an_interface():
    env: dict[str, str] = {}
    set_torchrun_env(rank(1, 2, 1, 2), env)
    assert set(env) == set(NAMES)
