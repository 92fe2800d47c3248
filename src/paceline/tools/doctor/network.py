"""Names and addresses: this node's name, and whether others can reach it by that name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from paceline.cluster.network import addresses_of, is_loopback, outside_addresses, own_end
from paceline.launch.preflight.node_info import NodeInfo
from paceline.tools.doctor.check import Check


def make_name_check(several: bool) -> Callable[[NodeInfo], Iterator[Check]]:
    """The check of a node's own name; among several hosts it must not resolve to loopback."""

    def check_name(facts: NodeInfo) -> Iterator[Check]:
        where = ", ".join(facts.resolves_to) or "nothing"
        seen = f"{facts.host} is {where}"
        loops = any(is_loopback(one) for one in facts.resolves_to)
        if not several:
            yield Check("host name", "ok", seen + (" (fine on one machine)" if loops else ""))
        elif loops:
            yield _resolves_to_loopback(facts, seen)
        elif not facts.resolves_to:
            yield Check(
                "host name",
                "fail",
                f"{facts.host} cannot be resolved on itself",
                _how_to_name(facts),
            )
        else:
            yield Check("host name", "ok", seen)

    return check_name


def _resolves_to_loopback(facts: NodeInfo, seen: str) -> Check:
    return Check(
        "host name",
        "fail",
        f"{seen}: a loopback address, by which other hosts reach only themselves",
        f"Remove {facts.host} from the loopback line in its /etc/hosts. {_how_to_name(facts)}",
    )


def _how_to_name(facts: NodeInfo) -> str:
    own = next(iter(outside_addresses(facts.interfaces)), "ADDRESS")
    return f"Write `{own} {facts.host}` there, or enter it in DNS."


def check_interfaces(facts: NodeInfo) -> Iterator[Check]:
    shown = {name: outside_addresses({name: listed}) for name, listed in facts.interfaces.items()}
    seen = "; ".join(f"{name} {' '.join(some)}" for name, some in shown.items() if some)
    yield Check("interfaces", "ok", seen or "only loopback")


def check_routes(names: Sequence[str], interfaces: Mapping[str, Sequence[str]]) -> list[Check]:
    """Through which of our interfaces hosts are reached; nothing is sent."""
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
    try:
        return own_end(address)
    except OSError:
        return None
