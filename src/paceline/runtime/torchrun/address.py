"""MASTER_ADDR and MASTER_PORT as torchrun sets them, and whether they are ours."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from paceline.cluster.network import addresses_of, is_loopback

ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"

CHOSEN = "PACELINE_MASTER"
"""The variable with what we chose: address and port, each a dash if it is the user's."""

NOT_OURS = "-"

TORCHRUN = "TORCHELASTIC_RUN_ID"
"""The variable that marks processes of torchrun, which chooses address and port itself."""

LOOPBACK = "127.0.0.1"

PORT_TAKEN = "port.taken"
"""In the job directory: rank 0 could not bind the port that was chosen for it."""


def is_chosen(env: Mapping[str, str]) -> bool:
    """Whether MASTER_ADDR is ours: neither the user's nor the script's.

    >>> is_chosen({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7", "PACELINE_MASTER": "10.0.0.1 7"})
    True
    """
    return ADDRESS in read_ours(env)


def is_held_by_rank_0(env: Mapping[str, str]) -> bool:
    """Whether MASTER_PORT is ours."""
    return PORT in read_ours(env)


def read_ours(env: Mapping[str, str]) -> set[str]:
    """Which of the two we chose; none if anybody has changed one of those since."""
    chosen = [] if TORCHRUN in env else env.get(CHOSEN, "").split()
    words = {n: w for n, w in zip((ADDRESS, PORT), chosen, strict=False) if w != NOT_OURS}
    return set(words) if all(env.get(name) == word for name, word in words.items()) else set()


def loopback_of(name: str) -> str:
    """The loopback address that a name or an address resolves to; empty if there is another."""
    found = sorted(addresses_of(name), key=lambda one: ":" in one)
    return found[0] if found and all(map(is_loopback, found)) else ""


def is_loopback_name(name: str) -> bool:
    """Whether a name or an address reaches only the machine itself."""
    return bool(loopback_of(name))


def hold_socket(address: str, port: int) -> socket.socket:
    """A socket that reserves a port as long as it is open; it does not listen.

    Without an address, on all addresses of this machine, IPv6 included: others may use any.
    """
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if both:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, port))
    except OSError:
        held.close()
        raise
    return held
