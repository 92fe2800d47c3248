"""The variables that scripts for torchrun read.

RANK, LOCAL_RANK and the like are known without MPI, so MPI is not started for them. GROUP_RANK and
GROUP_WORLD_SIZE (the node's number, how many nodes) are set if known. ROLE_RANK and the like are
torchrun's own, and TORCHELASTIC_... would claim that torchrun is there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress

from paceline.cluster.detect import Environment
from paceline.cluster.network import addresses_of, interface_of, own_end, read_interfaces
from paceline.errors import LaunchError
from paceline.runtime.job_dir import notify_launcher
from paceline.runtime.torchrun.address import (
    ADDRESS,
    PORT,
    PORT_TAKEN,
    hold_socket,
    is_held_by_rank_0,
    loopback_of,
)

RANKS_PER_HOST = "PACELINE_RANKS_PER_HOST"
"""The variable with the number of ranks of each host, in order, set by the launcher."""

_INTERFACE = "GLOO_SOCKET_IFNAME"
_OUR_INTERFACE = "PACELINE_INTERFACE"
"""The variable with the interface that we chose, so that a better choice may replace it."""
_held: list[socket.socket] = []


def set_torchrun_env(environment: Environment, env: MutableMapping[str, str] = os.environ) -> None:
    """Set this rank's variables; rank 0 binds the port that the launcher has chosen."""
    if environment.kind != "torchrun":
        for name in [name for name in env if name.startswith("TORCHELASTIC_")]:
            del env[name]  # of a torchrun around us: this is not one of its processes
    env.update(describe_rank(environment, env))
    if environment.rank in (0, None) and is_held_by_rank_0(env):
        _reserve_port(env)
    name_interface(env, _interface_to(env[ADDRESS]) if env.get(ADDRESS) else "")


def describe_rank(environment: Environment, env: Mapping[str, str]) -> dict[str, str]:
    """Those of torchrun's variables about this rank that are known."""
    if environment.size == 1 or not environment.launched:
        numbers: Sequence[int | None] = (0, 1, 0, 1, 0, 1)
    else:
        numbers = (
            *(environment.rank, environment.size),
            *(environment.local_rank, environment.local_size),
            *_find_node(environment, env),
        )
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    every = (*names, "GROUP_RANK", "GROUP_WORLD_SIZE")
    return {name: str(n) for name, n in zip(every, numbers, strict=True) if n is not None}


def name_interface(env: MutableMapping[str, str], name: str) -> None:
    """Set gloo's interface, or none; one that the user has set stays."""
    if env.get(_INTERFACE, "") not in ("", env.get(_OUR_INTERFACE)):
        return
    for variable in (_INTERFACE, _OUR_INTERFACE):
        env.pop(variable, None)
        if name:
            env[variable] = name


def is_on_one_node(env: Mapping[str, str]) -> bool:
    """Whether all ranks are on this node, by the variables of torchrun."""
    return env.get("LOCAL_WORLD_SIZE") is not None and env["LOCAL_WORLD_SIZE"] == env["WORLD_SIZE"]


def _find_node(environment: Environment, env: Mapping[str, str]) -> tuple[int | None, int | None]:
    """The number of this rank's node and how many there are; None if unknown."""
    if environment.local_size == environment.size:
        return 0, 1
    if environment.kind == "slurm-step" and env.get("SLURM_NODEID", "").isdecimal():
        nodes = env.get("SLURM_STEP_NUM_NODES", "")
        return int(env["SLURM_NODEID"]), int(nodes) if nodes.isdecimal() else None
    counts = [int(text) for text in env.get(RANKS_PER_HOST, "").split(",") if text.isdecimal()]
    if sum(counts) != environment.size or environment.rank is None:
        return None, None
    first = 0
    for node, count in enumerate(counts):
        if environment.rank < first + count:
            # mpirun may have been told to place ranks in another order.
            as_planned = environment.local_rank == environment.rank - first
            return (node, len(counts)) if as_planned else (None, None)
        first += count
    return None, None


def _reserve_port(env: Mapping[str, str]) -> None:
    """Reserve the port until this process ends; its store, or a child's, may still open it."""
    try:
        _held.append(hold_socket(loopback_of(env[ADDRESS]), int(env[PORT])))
    except OSError as error:
        notify_launcher(PORT_TAKEN, env[PORT])
        raise LaunchError(
            f"MASTER_PORT {env[PORT]} was chosen, and is not available on {socket.gethostname()}: "
            f"{error}. Start again, or set MASTER_PORT to one that is free there"
        ) from None


def _interface_to(address: str) -> str:
    """The interface that reaches an address: gloo's own choice may be loopback, or a dead end.

    On one node it is loopback, so that nothing listens to the outside.
    """
    with suppress(OSError):
        found = sorted(addresses_of(address), key=lambda one: ":" in one)
        return interface_of(own_end(found[0]), read_interfaces()) if found else ""
    return ""
