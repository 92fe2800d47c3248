"""A cluster made on this machine: hosts of namespaces, and the daemons of a service on each.

Nothing of the machine is changed: each host has its own /tmp, /run, /var/log and /var/spool, all
share a home and a folder, and everything ends with the block that made it, however that ends.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from paceline.errors import ConfigError, LaunchError
from paceline.tools.bench.hosts import Hosts, check_means

REPOSITORY = Path(__file__).parents[3]
HOME = pwd.getpwuid(0).pw_dir
"""Where hosts see the home they share; from outside it is `Cluster.home`."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""What Open MPI's mpirun wants of root, for tests that call it themselves."""
HANG_S = 240.0
"""What has not happened by then never will: many times what anything takes, on busy cores, too."""

_OWN = ("/tmp", "/var/log", "/var/spool")
_FURNISH = """
own="$folder/own/$(hostname)"
hide() {{
  mkdir -p "$2"
  for path in {seen} "$folder"; do
    case $path in
    "$1"/*) mkdir -p "$2${{path#"$1"}}"; mount --bind "$path" "$2${{path#"$1"}}" ;;
    esac
  done
  mount --rbind "$2" "$1"
}}
hide {home} "$folder/home"
for place in {shared}; do hide "$place" "$folder$place"; done
for place in {own}; do hide "$place" "$own$place"; done
chmod 1777 /tmp
mount -t tmpfs tmpfs /run
mkdir -p "$own/cgroup"
mount --rbind /sys/fs/cgroup "$own/cgroup"
mount -t sysfs sysfs /sys  # with the interfaces of this host, which UCX looks up there
mount --rbind "$own/cgroup" /sys/fs/cgroup
"""
"""Other folders in the place of the machine's; what hosts must see is seen through them."""


class Service(Protocol):
    """What runs on the hosts of a cluster."""

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts; the first is where users log in."""

    @property
    def programs(self) -> tuple[str, ...]:
        """What must be installed."""

    @property
    def places(self) -> tuple[str, ...]:
        """Folders of the machine that the hosts have as their own, empty and shared by all."""

    def prepare(self, cluster: Cluster) -> None:
        """Fill the places; nothing runs yet."""

    def serve(self, cluster: Cluster, host: int) -> None:
        """Start the daemons of this host; again when it comes back."""

    def settle(self, cluster: Cluster, hosts: Sequence[int]) -> None:
        """Wait until users can work on these hosts, which serve: all of them, or one come back."""


class Cluster:
    """Hosts with a service, inside the block.

    Files for the hosts go into `folder` (the same path everywhere) or `home`; a test's `tmp_path`
    is not seen there, as /tmp is each host's own.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.names = service.names
        text = _furnish(service.places)
        self._hosts = Hosts(None, service.names, text, own_processes=True)
        self._stack = ExitStack()
        self._spaces: dict[int, str] = {}
        self._furniture: dict[int, set[int]] = {}

    def __enter__(self) -> Cluster:
        missing = why_not(self.service)
        if missing:
            raise ConfigError(missing)
        with ExitStack() as stack:
            stack.enter_context(self._hosts)
            self.folder.mkdir()
            self.service.prepare(self)
            self._serve(range(len(self.names)))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def folder(self) -> Path:
        """Seen by all hosts under the same path, and removed at the end; empty for the tests."""
        return self._hosts.folder / "shared"

    def new_folder(self, name: str) -> Path:
        """A folder for one test, seen by all hosts under the same path."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))

    @property
    def home(self) -> Path:
        """The home that all hosts share, as it is seen from outside."""
        return self._hosts.folder / "home"

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._hosts.addresses

    def own(self, host: int, place: str) -> Path:
        """From outside: a host's own /tmp, /var/log or /var/spool, or what lies there."""
        return self._hosts.folder / "own" / self.names[host] / place.lstrip("/")

    def place(self, place: str) -> Path:
        """From outside: what all hosts see under one of the service's places."""
        return self._hosts.folder / place.lstrip("/")

    def enter(self, host: int = 0) -> list[str]:
        """What to put before a command so that it runs in the host, with our variables."""
        return self._hosts.enter(host)

    def start(
        self,
        argv: Sequence[str | Path],
        host: int = 0,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = HOME,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """A command on that host, as its user would start it there, in the background.

        It leads a group of processes: `os.killpg(process.pid, ...)` reaches it, `kill` only the
        door it went through. `options` are those of `Popen`.
        """
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(
            [*self.enter(host), "env", "-C", str(cwd), *map(str, argv)],
            env={**login_environment(), **(env or {})},
            **{"stdin": subprocess.DEVNULL, "start_new_session": True, **pipes, **options},
            text=True,
        )

    def run(
        self,
        argv: Sequence[str | Path],
        host: int = 0,
        timeout_s: float = HANG_S,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = HOME,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """The same, to its end; at the time limit it is killed (TimeoutExpired)."""
        process = self.start(argv, host, env, cwd, **options)
        try:
            out, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        return subprocess.CompletedProcess([*map(str, argv)], process.returncode, out, errors)

    def tell(self, *argv: str | Path, host: int = 0, **options: Any) -> str:
        """What a command says; it must succeed."""
        done = self.run(argv, host, **options)
        if done.returncode:
            said = f"{done.stdout}{done.stderr}".strip()
            where = self.names[host]
            raise LaunchError(f"{shlex.join(done.args)} on {where}: {done.returncode}, {said}")
        return done.stdout

    def processes(self, host: int) -> dict[int, str]:
        """What runs there besides the daemons: command lines by the machine's own numbers."""
        running = self._running(host)
        return {pid: line for pid, line in running.items() if pid not in self._furniture[host]}

    def shared_memory(self, host: int) -> list[str]:
        """What lies in its /dev/shm."""
        return self.tell("ls", "-A", "/dev/shm", host=host).splitlines()

    def check_nothing_is_left(self, hosts: Iterable[int] | None = None) -> None:
        """Wait until the daemons are alone on these hosts, or on all; no memory of ours is left."""
        looked_at = range(len(self.names)) if hosts is None else list(hosts)
        running = {host: self.processes(host) for host in looked_at}
        end = time.monotonic() + HANG_S
        while any(running.values()):
            if time.monotonic() > end:
                raise LaunchError(f"after {HANG_S:g} s there still runs: {running}")
            time.sleep(0.1)
            running = {host: self.processes(host) for host in looked_at}
        memory = [name for host in looked_at for name in self.shared_memory(host)]
        left = [name for name in memory if "paceline" in name]
        assert not left, f"still in shared memory: {left}"

    def cut(self, host: int) -> None:
        """Pull its network cable; `mend` puts it back."""
        self._hosts.cut(host)

    def mend(self, host: int) -> None:
        self._hosts.mend(host)

    def kill_host(self, host: int) -> None:
        """As a failure of its power: off the network, and nothing runs any more."""
        self._hosts.kill(host)

    def revive(self, host: int) -> None:
        """Switch a killed host on, with its daemons; its /tmp is as it was, its memory empty."""
        self._hosts.revive(host)
        self._serve([host])

    def _serve(self, hosts: Sequence[int]) -> None:
        if 0 in hosts:
            self.service.serve(self, 0)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: self.service.serve(self, host), filter(None, hosts)))
        self.service.settle(self, hosts)
        for host in hosts:
            link = self.tell("readlink", "/proc/self/ns/pid", host=host)
            self._spaces[host] = link.strip()
            self._furniture[host] = set(self._running(host))

    def _running(self, host: int) -> dict[int, str]:
        space, found = self._spaces[host], {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").strip()
                # Who has ended and is not buried yet has no line any more.
                if line and str((entry / "ns/pid").readlink()) == space:
                    found[int(entry.name)] = line.decode(errors="replace")
            except OSError:  # it has ended meanwhile
                continue
        return found


def login_environment() -> dict[str, str]:
    """What a shell on the first host would have: nothing of ours but the terminal and the venv."""
    path = f"{Path(sys.executable).parent}:{SYSTEM_PATH}"
    return {
        "HOME": HOME,
        "LANG": "C.UTF-8",
        "LOGNAME": "root",
        "PATH": path,
        "SHELL": "/bin/bash",
        "TERM": os.environ.get("TERM", "dumb"),
        "USER": "root",
    }


def why_not(service: Service) -> str:
    """Why this cluster cannot be made here; empty if it can."""
    try:
        check_means()
    except ConfigError as error:
        return str(error)
    missing = [name for name in service.programs if not shutil.which(name, path=SYSTEM_PATH)]
    if missing:
        return f"missing: {', '.join(missing)}; run scripts/install-cluster-packages"
    return ""


def wait_for(what: str, done: Callable[[], object], timeout_s: float = HANG_S) -> None:
    """Look until it is so; an error that says for what it waited if it does not come."""
    end = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > end:
            raise LaunchError(f"waited {timeout_s:g} s in vain: {what}")
        time.sleep(0.1)


def _furnish(places: Sequence[str]) -> str:
    """Where hosts have their own folders; the program and its data are seen all the same."""
    data = os.environ.get("PACELINE_DATA")
    paths = {REPOSITORY, Path(sys.prefix), Path(sys.base_prefix), *([Path(data)] if data else [])}
    seen = shlex.join(sorted(str(path.absolute()) for path in paths))
    shared, own = shlex.join(places), shlex.join(_OWN)
    return _FURNISH.format(seen=seen, home=shlex.quote(HOME), shared=shared, own=own)
