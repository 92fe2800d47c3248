"""Read the facts of this node; `python -m paceline.launch.preflight.probe` prints them as JSON.

Doctor and the launcher run it on every host. It must not fail where something is missing: that is
what it shall report. Neither torch nor MPI is loaded into this process.
"""

from __future__ import annotations

import getpass
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.cluster.cgroups import cpu_quotas
from paceline.cluster.commands import answer, ask_srun, find_commands
from paceline.cluster.cores import affinity, available_cores
from paceline.cluster.detect import detect
from paceline.cluster.gpus import find_gpus
from paceline.cluster.memory import read_memory, read_memory_limit, read_shared_memory
from paceline.cluster.network import addresses_of, read_interfaces
from paceline.cluster.schedulers import COMMANDS, name_job
from paceline.errors import LaunchError
from paceline.launch.mpirun import find_mpirun
from paceline.launch.preflight.node_info import NodeInfo, to_json

Fields = dict[str, Any]
"""Some of those of NodeInfo."""

_ASK_LIBRARY = (
    "import json; from paceline.comm.mpi import library; print(json.dumps(library()._asdict()))"
)
_LIBRARY_TIMEOUT_S = 60.0
"""A first import from a network file system is slow."""


def read_node_info(env: Mapping[str, str] = os.environ) -> NodeInfo:
    """Look at this node as a rank started here would see it."""
    return NodeInfo(**_software(), **_mpi(), **_machine(env), **_place(env), time_s=time.time())


def _software() -> Fields:
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "executable": sys.executable,
        "paceline": _version("paceline") or "",
        "digest": digest(Path(__file__).parents[2]),
        **{name: _version(name) for name in ("mpi4py", "torch", "numpy")},
    }


def digest(folder: Path) -> str:
    """A short hash of the contents of all Python files in a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        total.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()[:12]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _mpi() -> Fields:
    found: Fields = {}
    try:
        mpirun = find_mpirun()
        found |= {"mpirun": mpirun.path, "mpirun_kind": mpirun.kind}
        found["mpirun_version"] = _numbers(answer([mpirun.path, "--version"]))
    except LaunchError as error:
        found["mpirun_problem"] = str(error)
    return found | read_library()


def read_library() -> Fields:
    """Ask for the MPI library in a process of its own: one that does not fit may crash it."""
    if _version("mpi4py") is None:
        return {"libmpi_problem": "mpi4py is not installed"}
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK_LIBRARY],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIBRARY_TIMEOUT_S,
            env={**os.environ, "MPI4PY_RC_INITIALIZE": "0"},
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return {"libmpi_problem": f"loading it took more than {_LIBRARY_TIMEOUT_S:.0f} s"}
    if asked.returncode:
        return {"libmpi_problem": _last_line(asked.stderr) or f"exit code {asked.returncode}"}
    found = json.loads(_last_line(asked.stdout))
    return {
        "libmpi": found["path"],
        "libmpi_why": explain(found["path"], os.environ, sys.prefix),
        "libmpi_version": found["version"],
        "libmpi_standard": found["standard"],
        "ulfm": found["ulfm"],
    }


def explain(path: str | None, env: Mapping[str, str], prefix: str) -> str:
    """Say why mpi4py has loaded this library.

    >>> explain("/venv/lib/libmpi.so.40", {}, "/venv")
    'in the environment of this Python'
    """
    for name in ("MPI4PY_LIBMPI", "MPI4PY_MPIABI"):
        if env.get(name):
            return f"{name} is {env[name]}"
    if path is None:
        return "linked into mpi4py"
    if Path(path).is_relative_to(prefix):
        return "in the environment of this Python"
    folders = [folder for folder in env.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if any(os.path.realpath(folder) == str(Path(path).parent) for folder in folders):
        return "on LD_LIBRARY_PATH"
    return "the system's, found by the dynamic loader"


def _machine(env: Mapping[str, str]) -> Fields:
    memory, free = read_memory()
    shm, shm_free = read_shared_memory()
    return {
        "cpus": os.cpu_count() or 1,
        "affinity": sorted(affinity()),
        "quota": min(cpu_quotas(Path("/")), default=None),
        "cores": available_cores(),
        "threads": env.get("OMP_NUM_THREADS"),
        "memory_bytes": memory,
        "memory_free_bytes": free,
        "memory_limit_bytes": read_memory_limit(),
        "shm_bytes": shm,
        "shm_free_bytes": shm_free,
        "gpus": list(find_gpus(env)),
    }


def _place(env: Mapping[str, str]) -> Fields:
    host, commands = socket.gethostname(), find_commands(COMMANDS)
    return {
        "host": host,
        "resolves_to": addresses_of(host),
        "interfaces": read_interfaces(),
        "user": _user(),
        "commands": commands,
        "srun_mpi": ask_srun(commands),
        "pmi": [name for name in ("PMIX_RANK", "PMI_RANK") if name in env],
        "job": name_job(env),
        **_job(env),
    }


def _job(env: Mapping[str, str]) -> Fields:
    try:
        environment = detect(env)
    except LaunchError as error:
        return {"job_problem": str(error)}
    granted = None if environment.kind == "none" else environment.size
    return {"started_by": environment.kind, "granted": granted}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return str(os.getuid())


def _numbers(text: str) -> str | None:
    found = re.search(r"\d+\.\d+(\.\d+)?\w*", text)
    return found.group() if found else None


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def main() -> int:
    sys.stdout.write(to_json(read_node_info()) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
