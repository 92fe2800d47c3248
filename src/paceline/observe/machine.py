"""What a run ran on, and by which command: for a report that others are to understand."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from paceline.core.trees import Tree

_PACKAGES = ("paceline", "numpy", "torch", "keras", "tensorflow", "jax", "mpi4py")


def describe_machine() -> Tree:
    """Of this process: its command, the versions of what it has loaded, and the machine."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    name = program.parent.name if program.name == "__main__.py" else program.name
    versions = {"Python": platform.python_version()}
    for package in _PACKAGES:
        if package in sys.modules:
            with suppress(PackageNotFoundError):
                versions[package] = version(package)
    return {
        "command": shlex.join([name, *sys.argv[1:]]),
        "versions": versions,
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "processor": _processor() or platform.machine(),
            "cores": os.cpu_count(),
            "memory_bytes": _memory(),
        },
    }


def _processor(path: Path = Path("/proc/cpuinfo")) -> str:
    with suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu"):
                return value.strip()
    return ""


def _memory() -> int | None:
    with suppress(AttributeError, OSError, ValueError):  # not on every system
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None
