"""Rendezvous without addresses and ports: MPI tells the ranks where rank 0's store is."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from urllib.parse import parse_qs, urlparse

import torch.distributed as dist

from paceline.cluster.network import interface_of, outside_addresses, own_end, read_interfaces
from paceline.comm import World
from paceline.errors import LaunchError, WorldError
from paceline.runtime.torchrun.address import LOOPBACK
from paceline.runtime.torchrun.env import name_interface
from paceline.torch_backend.joined import join

_CONNECT_S = 3.0
"""How long to wait for an address to answer."""
_TOKEN_BYTES = 16
_KEY = "paceline"


def mpi_rendezvous(
    url: str, timeout: timedelta = timedelta(minutes=30), **_: object
) -> Iterator[tuple[dist.Store, int, int]]:
    """The handler of mpi4py://: a store that all ranks reach, this rank, and the world size."""
    world = join().world
    check_claim(url, world)
    if world.size == 1:
        yield dist.HashStore(), 0, 1
    else:
        yield _open_store(world, timeout), world.rank, world.size
    raise RuntimeError("ranks of MPI rendezvous once; restart the program")


def check_claim(url: str, world: World) -> None:
    """Refuse a rank or world size from the caller that differs from MPI's."""
    asked = parse_qs(urlparse(url).query)
    for word, real in (("rank", world.rank), ("world_size", world.size)):
        claimed = int(asked.get(word, [real])[0])
        if claimed != real:
            raise LaunchError(
                f"init_process_group was given {word}={claimed}, but in MPI it is {real}. Omit "
                "rank and world_size; if MPI's are wrong, start with `paceline run -n N`"
            )


def _open_store(world: World, timeout: timedelta) -> dist.Store:
    """Rank 0's store, at an address where each rank has reached it."""
    interfaces = read_interfaces()
    one_node = len(world.node_ranks) == world.size
    store, problem, token = None, "", secrets.token_hex(_TOKEN_BYTES)
    if world.rank == 0:
        try:
            store = _serve(LOOPBACK if one_node else "", world.size, timeout)
            store.set(_KEY, token)
        except (OSError, RuntimeError) as error:
            problem = f"cannot open a store on {world.node}: {error}"
    addresses = [LOOPBACK] if one_node else outside_addresses(interfaces)
    port = store.port if store else 0
    addresses, port, token, problem = world.bcast_value((addresses, port, token, problem))
    if problem:
        raise WorldError(problem)
    address = addresses[0] if addresses else ""
    if store is None:
        store, address = _find(addresses, port, token, world.size)
    reached = world.allgather_values(address)
    _check_reached(reached, addresses)
    assert store is not None
    store.set_timeout(timeout)
    own = reached[-1] if world.rank == 0 else own_end(address)
    # gloo's own choice may be loopback, or a network that the other nodes cannot reach.
    name_interface(os.environ, interface_of(own, interfaces))
    return store


def _serve(address: str, size: int, timeout: timedelta) -> dist.TCPStore:
    """A store that listens on this address only; without one, on all addresses."""
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, dualstack_ipv6=both) as listening:
        port = listening.getsockname()[1]
        return dist.TCPStore(
            LOOPBACK,
            port,
            size,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=os.dup(listening.fileno()),
        )


def _connect(address: str, port: int, size: int, timeout: timedelta) -> dist.TCPStore:
    return dist.TCPStore(address, port, size, False, timeout, wait_for_workers=False)


def _find(
    addresses: Sequence[str], port: int, token: str, size: int
) -> tuple[dist.TCPStore | None, str]:
    """The first address where rank 0's store answers, or nothing.

    The token tells it apart from others at the same address: container bridges have the same
    address on every node.
    """
    for address in addresses:
        found: list[dist.TCPStore] = []
        # If something else listens there and never answers, the store would wait forever.
        attempt = partial(_attempt, address, port, token, size, found)
        thread = threading.Thread(target=attempt, daemon=True)
        thread.start()
        thread.join(3 * _CONNECT_S)
        if found:
            return found[0], address
    return None, ""


def _attempt(address: str, port: int, token: str, size: int, found: list[dist.TCPStore]) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        socket.create_connection((address, port), _CONNECT_S).close()
        store = _connect(address, port, size, timedelta(seconds=_CONNECT_S))
        if store.check([_KEY]) and store.get(_KEY).decode() == token:
            found.append(store)


def _check_reached(reached: Sequence[str], tried: Sequence[str]) -> None:
    lost = [rank for rank, address in enumerate(reached) if not address]
    if lost:
        raise LaunchError(
            f"rank {', '.join(map(str, lost))} cannot reach rank 0 at any of its addresses "
            f"({', '.join(tried) or 'none outside loopback'}). Check the firewall between the "
            "nodes with `paceline doctor --hosts`"
        )
