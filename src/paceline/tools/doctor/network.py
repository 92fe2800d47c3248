"""Names and addresses: what this node is called, and whether others could reach it by that."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence

from paceline.cluster.network import addresses_of, is_loopback
from paceline.launch.preflight.node_info import NodeInfo
from paceline.tools.doctor.check import Check


def name_check(several: bool) -> Callable[[NodeInfo], Iterator[Check]]:
    """The check of a node's own name; among several hosts it must not lead to loopback."""

    def check_name(facts: NodeInfo) -> Iterator[Check]:
        where = ", ".join(facts.resolves_to) or "nothing"
        seen = f"{facts.host} is {where}"
        loops = any(is_loopback(one) for one in facts.resolves_to)
        if not several:
            yield Check("host name", "ok", seen + (" (fine on one machine)" if loops else ""))
        elif loops:
            yield _loops(facts, seen)
        elif not facts.resolves_to:
            yield Check(
                "host name", "fail", f"{facts.host} cannot be resolved on itself", _name_it(facts)
            )
        else:
            yield Check("host name", "ok", seen)

    return check_name


def _loops(facts: NodeInfo, seen: str) -> Check:
    return Check(
        "host name",
        "fail",
        f"{seen}: a loopback address, at which other hosts would find themselves",
        f"Take {facts.host} off the loopback line in /etc/hosts of {facts.host}. {_name_it(facts)}",
    )


def _name_it(facts: NodeInfo) -> str:
    own = next(iter(outside(facts.interfaces)), "ADDRESS")
    return f"Write `{own} {facts.host}` there, or enter it in DNS."


def check_interfaces(facts: NodeInfo) -> Iterator[Check]:
    shown = {name: outside({name: listed}) for name, listed in facts.interfaces.items()}
    seen = "; ".join(f"{name} {' '.join(some)}" for name, some in shown.items() if some)
    yield Check("interfaces", "ok", seen or "loopback alone")


def outside(interfaces: Mapping[str, Sequence[str]]) -> list[str]:
    """Addresses that others may reach: neither loopback nor of one cable alone.

    >>> outside({"lo": ["127.0.0.1"], "eth0": ["10.0.0.1", "fe80::1"]})
    ['10.0.0.1']
    """
    everything = [address for listed in interfaces.values() for address in listed]
    return [one for one in everything if not is_loopback(one) and not one.startswith("fe80")]


def check_routes(names: Sequence[str], interfaces: Mapping[str, Sequence[str]]) -> list[Check]:
    """By which of our interfaces hosts are reached; nothing is sent."""
    failed, found = [], []
    for name in names:
        address = next(iter(addresses_of(name)), None)
        own = None if address is None else _own_address(address)
        through = next((face for face, listed in interfaces.items() if own in listed), own)
        if address is None:
            remedy = f"Add it to DNS or /etc/hosts: `getent hosts {name}` must answer."
            failed.append(Check("route", "fail", f"{name} cannot be resolved here", remedy))
        elif own is None:
            detail = f"there is no route to {name} ({address})"
            failed.append(Check("route", "fail", detail, f"See `ip route get {address}`."))
        else:
            found.append(f"{name} ({address}) by {through}")
    return failed + ([Check("route", "ok", "; ".join(found))] if found else [])


def _own_address(address: str) -> str | None:
    """The address that we would have in a connection to this one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asker:
            asker.connect((address, 9))  # of a datagram socket: looks the route up, sends nothing
            return str(asker.getsockname()[0])
    except OSError:
        return None
