"""Reading a node: its addresses, its memory, its scheduler's commands. Nothing here waits long."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")
_IFF_UP, _SIOCGIFFLAGS, _SIOCGIFADDR = 1, 0x8913, 0x8915
_ANSWER_S = 10.0
"""How long a scheduler's command may take to answer."""

COMMANDS = (
    *("ssh", "sbatch", "srun", "salloc", "scontrol"),
    *("qsub", "qrsh", "qstat", "qconf", "pbsdsh", "bsub", "blaunch", "jsrun"),
)
"""What is looked for on PATH."""


def addresses_of(name: str) -> list[str]:
    """The addresses of a name, each once; none if it is unknown."""
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))
    return []


def is_loopback(address: str) -> bool:
    """Whether an address leads nowhere but to the machine itself.

    >>> is_loopback("127.0.1.1"), is_loopback("10.0.0.1")
    (True, False)
    """
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def read_interfaces(root: Path = _ROOT) -> dict[str, list[str]]:
    """The addresses of all interfaces that are up, asked from the kernel itself."""
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
    for line in _read(root / "proc/net/if_inet6").splitlines():
        fields = line.split()
        if len(fields) == 6:
            yield fields[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))


def read_memory(root: Path = _ROOT) -> tuple[int, int]:
    """Bytes of memory in all, and free for new programs; 0 where it cannot be read."""
    sizes = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if rest.split()[:1] and rest.split()[0].isdigit():
            sizes[name] = int(rest.split()[0]) * 1024
    return sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)


def read_memory_limit(root: Path = _ROOT) -> int | None:
    """The least limit of memory on the way from this process's cgroups up to their roots."""
    mount = root / "sys/fs/cgroup"
    limits = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for top, name in _limit_files(mount, controllers):
            here = top.joinpath(*(part for part in path.split("/") if part not in ("", "..")))
            for group in (here, *here.parents):
                if not group.is_relative_to(top):
                    break
                limits.append(_read(group / name))
    # No limit is "max", or in version 1 a number larger than any memory.
    return min((int(text) for text in limits if text.isdigit() and int(text) < 2**60), default=None)


def _limit_files(mount: Path, controllers: str) -> list[tuple[Path, str]]:
    if not controllers:
        return [(mount, "memory.max"), (mount / "unified", "memory.max")]
    if "memory" in controllers.split(","):
        return [(mount / "memory", "memory.limit_in_bytes")]
    return []


def read_shared_memory(folder: str = "/dev/shm") -> tuple[int, int]:
    """Bytes of shared memory in all, and free for us; 0 where there is none."""
    try:
        place = os.statvfs(folder)
    except OSError:
        return 0, 0
    return place.f_blocks * place.f_frsize, place.f_bavail * place.f_frsize


def find_commands() -> dict[str, str]:
    """Which of COMMANDS are on PATH, and where."""
    return {name: path for name in COMMANDS if (path := shutil.which(name)) is not None}


def ask_srun(commands: Mapping[str, str]) -> list[str]:
    """The ways in which srun can introduce ranks to each other; none without srun."""
    return parse_mpi_list(answer([commands["srun"], "--mpi=list"])) if "srun" in commands else []


def parse_mpi_list(text: str) -> list[str]:
    """Read `srun --mpi=list`, whose heads differ between versions of Slurm.

    >>> parse_mpi_list("MPI plugin types are...\\n\\tnone\\n\\tpmi2\\n"
    ...                "specific pmix plugin versions available: pmix_v4")
    ['none', 'pmi2', 'pmix_v4']
    """
    lines = (line.removeprefix("srun:").strip() for line in text.splitlines())
    named = (line.rpartition(":")[2] if "available:" in line else line for line in lines)
    words = (word.strip() for line in named for word in line.split(","))
    return [word for word in words if word and " " not in word]


def answer(argv: Sequence[str], timeout_s: float = _ANSWER_S) -> str:
    """What a command says, on either output; empty if it fails or takes too long."""
    asked = _run(argv, timeout_s)
    return "" if asked is None or asked.returncode else asked.stdout + asked.stderr


def explain_failure(argv: Sequence[str], timeout_s: float = _ANSWER_S) -> str:
    """Why a command fails, in the first line that it says about it; empty if it does not."""
    asked = _run(argv, timeout_s)
    if asked is None:
        return f"no answer within {timeout_s:.0f} s"
    lines = [line.strip() for line in asked.stderr.splitlines() if line.strip()]
    return (lines or [f"exit code {asked.returncode}"])[0] if asked.returncode else ""


def _run(argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str] | None:
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
    return None


_JOBS = {
    "Slurm": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "PBS": ("PBS_JOBID",),
    "LSF": ("LSB_JOBID",),
}


def name_job(env: Mapping[str, str]) -> str:
    """The scheduler and the number of the job that we are in; empty outside of one.

    >>> name_job({"SLURM_JOB_ID": "12"})
    'Slurm job 12'
    """
    if "PE_HOSTFILE" in env or ("SGE_ROOT" in env and env.get("JOB_ID", "").isdigit()):
        return f"Grid Engine job {env.get('JOB_ID', '?')}"
    for scheduler, names in _JOBS.items():
        for name in names:
            if env.get(name):
                return f"{scheduler} job {env[name]}"
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
