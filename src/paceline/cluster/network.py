"""The network of this node: names, addresses, interfaces."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")
_IFF_UP, _SIOCGIFFLAGS, _SIOCGIFADDR = 1, 0x8913, 0x8915


def addresses_of(name: str) -> list[str]:
    """The addresses of a name, each once; none if it is unknown."""
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))
    return []


def is_loopback(address: str) -> bool:
    """Whether an address reaches only the machine itself.

    >>> is_loopback("127.0.1.1"), is_loopback("10.0.0.1")
    (True, False)
    """
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def read_interfaces(root: Path = _ROOT) -> dict[str, list[str]]:
    """The addresses of all interfaces that are up, as the kernel gives them."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            flags = _ask(asker, name, _SIOCGIFFLAGS)
            if flags is None or not struct.unpack("H", flags[16:18])[0] & _IFF_UP:
                continue
            address = _ask(asker, name, _SIOCGIFADDR)
            found[name] = [] if address is None else [socket.inet_ntoa(address[20:24])]
    for name, address6 in _addresses6(root):
        if name in found:
            found[name].append(address6)
    return found


def outside_addresses(interfaces: Mapping[str, Sequence[str]]) -> list[str]:
    """Addresses that other nodes may reach, those of IPv4 first."""
    every = [one for listed in interfaces.values() for one in listed]
    good = [one for one in every if not is_loopback(one) and not one.startswith("fe80")]
    return sorted(good, key=lambda one: ":" in one)


def interface_of(address: str, interfaces: Mapping[str, Sequence[str]]) -> str:
    """The interface that has this address; empty if none has."""
    return next((name for name, listed in interfaces.items() if address in listed), "")


def own_end(address: str) -> str:
    """The address that we have in a connection to this one; nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asker:
        asker.connect((address, 9))
        return str(asker.getsockname()[0])


def _ask(asker: socket.socket, name: str, question: int) -> bytes | None:
    import fcntl  # not on every system

    try:
        return fcntl.ioctl(asker.fileno(), question, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return None


def _addresses6(root: Path) -> Iterator[tuple[str, str]]:
    try:
        text = (root / "proc/net/if_inet6").read_text()
    except OSError:  # no IPv6
        return
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 6:
            yield fields[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))
