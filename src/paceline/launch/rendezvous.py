"""The rendezvous of torch.distributed: MASTER_ADDR and MASTER_PORT, as torchrun sets them.

The launcher chooses both before it starts ranks, so no MPI is needed to agree on them. A port is
reserved by a socket that is bound and does not listen: nobody else gets that port, and the store of
rank 0 can still open it, since both set SO_REUSEADDR. If rank 0 is on this machine, the launcher
reserves a port that the kernel has found free. Otherwise it picks a random one below the ephemeral
range, and rank 0 reserves it before the script begins; if it is taken, the launcher picks another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.cluster.hosts import Host
from paceline.cluster.network import addresses_of, is_loopback, own_end
from paceline.errors import LaunchError
from paceline.launch.job import Placement
from paceline.runtime.torchrun.address import (
    ADDRESS,
    CHOSEN,
    LOOPBACK,
    NOT_OURS,
    PORT,
    TORCHRUN,
    hold_socket,
    loopback_of,
    read_ours,
)

PORTS_TRIED = 3
_LOWEST, _HIGHEST = 20000, 32767
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@contextmanager
def rendezvous_env(placement: Placement, env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The rendezvous variables of a job's ranks, valid while the job runs.

    What the user has set stays; a loopback address for ranks of several hosts is refused. If no
    address is known by which hosts reach the first one, none is set: ranks then agree by MPI.
    """
    given = read_given(env)
    address = given.get(ADDRESS) or choose_address(placement)
    if not address:
        yield {ADDRESS: "", PORT: "", CHOSEN: ""}
        return
    if len(placement.hosts) > 1:
        _refuse_loopback(address, placement.hosts)
    if PORT in given:
        yield _variables(given, address, given[PORT])
    elif not placement.leads_here:
        yield _variables(given, address, str(draw_port()))
    else:
        with reserve(loopback_of(address)) as port:
            yield _variables(given, address, str(port))


def read_given(env: Mapping[str, str]) -> dict[str, str]:
    """What the user has set of the two, not an outer Paceline or torchrun."""
    if TORCHRUN in env:
        return {}
    ours = read_ours(env)
    return {name: env[name] for name in (ADDRESS, PORT) if env.get(name) and name not in ours}


def choose_address(placement: Placement) -> str:
    """Loopback for ranks of one host, else an address of the first that others reach, if any."""
    first, *others = placement.hosts or [Host("localhost")]
    if not others:
        return LOOPBACK
    if placement.leads_here:
        return _choose_own([other.name for other in others])
    return next(iter(_reachable(_machine(first.name))), "")


def _choose_own(others: list[str]) -> str:
    """The address of this machine in connections to one of the others."""
    for other in others:
        for address in _reachable(_machine(other)):
            with suppress(OSError):  # no way there
                own = own_end(address)
                if not is_loopback(own):
                    return own
    return ""


def _reachable(name: str) -> list[str]:
    """The addresses of a name, without loopback; IPv4 first."""
    return sorted((a for a in addresses_of(name) if not is_loopback(a)), key=lambda one: ":" in one)


def _machine(name: str) -> str:
    """A host without the user name that ssh logs in with."""
    return name.rpartition("@")[2]


def _refuse_loopback(address: str, hosts: tuple[Host, ...]) -> None:
    # A host's own name may resolve to loopback here, and be right elsewhere; an address may not.
    if address in ("localhost", "::1") or address.startswith("127."):
        names = ", ".join(host.name for host in hosts)
        raise LaunchError(
            f"MASTER_ADDR is {address}, which every host takes for itself, and the ranks are on "
            f"{names}. Unset it: an address of {hosts[0].name} is chosen then"
        )


def _variables(given: Mapping[str, str], address: str, port: str) -> dict[str, str]:
    chosen = [NOT_OURS if n in given else w for n, w in ((ADDRESS, address), (PORT, port))]
    return {ADDRESS: address, PORT: port, CHOSEN: " ".join(chosen)}


def draw_port(ephemeral: Path = _EPHEMERAL) -> int:
    """A random port below the kernel's ephemeral range."""
    highest = _HIGHEST
    with suppress(OSError, ValueError):
        highest = int(ephemeral.read_text().split()[0]) - 1
    if highest <= _LOWEST:  # the range begins below ours
        highest = _HIGHEST
    return random.SystemRandom().randint(_LOWEST, highest)


@contextmanager
def reserve(address: str, port: int = 0) -> Iterator[int]:
    """Reserve a port inside the block; without a number, any free one."""
    with hold_socket(address, port) as held:
        yield held.getsockname()[1]
