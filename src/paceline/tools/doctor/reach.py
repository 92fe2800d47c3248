"""Whether two hosts can connect to each other at any port, as ranks must; tried both ways.

This host listens, and so does the other, where this file runs as a program; each tries to connect.
A connection is closed at once: nothing is read from it. Both stop listening after some seconds.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from paceline.cluster.network import addresses_of
from paceline.errors import LaunchError

CONNECT_S = 5.0
"""How long one attempt may take; a firewall that drops packets never answers."""
LISTEN_S = 25.0
_WHOLE_S = 60.0


@dataclass(frozen=True)
class Reach:
    """The result: empty if it worked, else the problem."""

    there: str
    """From here to the host."""
    back: str
    """From the host to here."""


def try_both_ways(name: str, remote: Sequence[str], own_addresses: Sequence[str]) -> Reach:
    """Connect to a host, and have it connect to one of our addresses.

    `remote` is how a command runs there; this file's arguments are added to it.
    """
    with listening() as (port, _):
        argv = [*remote[:-1], f"{remote[-1]} {port} {' '.join(own_addresses)}"]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        ending = threading.Timer(_WHOLE_S, process.kill)
        ending.start()
        try:
            found = _exchange(name, process)
            process.communicate()  # Grid Engine ends the whole job if one of its tasks is killed
            return found
        finally:
            ending.cancel()
            process.kill()
            process.communicate()


def _exchange(name: str, process: subprocess.Popen[str]) -> Reach:
    """The other side prints its port, then the result of its own attempt."""
    assert process.stdout is not None
    assert process.stderr is not None
    port = _read_line(process.stdout, "port")
    if port is None or not port.isdecimal():
        problem = (process.stderr.read().strip().splitlines() or ["it printed nothing"])[-1]
        return Reach(problem, problem)
    there = connect(addresses_of(name), int(port))
    back = _read_line(process.stdout, "back") or "it printed nothing"
    return Reach(there, "" if back == "ok" else back)


def _read_line(lines: Iterable[str], word: str) -> str | None:
    """What follows the word in the first line that begins with it; shells may print a greeting."""
    for line in lines:
        first, _, rest = line.strip().partition(" ")
        if first == word:
            return rest
    return None


def connect(addresses: Sequence[str], port: int, timeout_s: float = CONNECT_S) -> str:
    """Try to connect to one of the addresses: empty if it worked, else the last problem."""
    problem = "no address is known"
    end = time.monotonic() + timeout_s
    for address in addresses:
        try:
            left = max(end - time.monotonic(), 0.5)
            socket.create_connection((address, port), timeout=left).close()
        except OSError as error:
            problem = f"{address}: {error}"
        else:
            return ""
    return problem


@contextmanager
def listening(seconds: float = LISTEN_S) -> Iterator[tuple[int, threading.Event]]:
    """Accept connections at a port that is free, and close them at once.

    Yields the port, and an event that is set when somebody has connected.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    dual = family == socket.AF_INET6
    with socket.create_server(("", 0), family=family, dualstack_ipv6=dual) as listener:
        connected, stop = threading.Event(), threading.Event()
        thread = threading.Thread(
            target=_accept, args=(listener, seconds, connected, stop), daemon=True
        )
        thread.start()
        try:
            yield int(listener.getsockname()[1]), connected
        finally:
            stop.set()
            thread.join()


def _accept(
    listener: socket.socket, seconds: float, connected: threading.Event, stop: threading.Event
) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stop.is_set():
        ready, _, _ = select.select([listener], [], [], 0.1)
        if ready:
            listener.accept()[0].close()
            connected.set()


def main(arguments: Sequence[str]) -> int:
    """On the other host: print our port, try to connect back, wait for a connection."""
    if len(arguments) < 2 or not arguments[0].isdecimal():
        raise LaunchError("usage: python -m paceline.tools.doctor.reach PORT ADDRESS ...")
    with listening() as (port, connected):
        _print(f"port {port}")
        problem = connect(arguments[1:], int(arguments[0]))
        _print(f"back {problem or 'ok'}")
        connected.wait(CONNECT_S)  # by then the other side has given up
    return 0


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
