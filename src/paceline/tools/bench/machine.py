"""The machine and the versions that figures were measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

from paceline import __version__
from paceline.cluster.cores import available_cores

_ASK_MPI = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    "print(MPI.Get_library_version().split(',')[0])"
)


def describe_machine() -> str:
    """Two lines: processor, cores and kernel; versions of Paceline, torch and the MPI library."""
    cores = f"{available_cores()} cores of {os.cpu_count()} processors"
    machine = f"{_processor()}, {cores}, {platform.system()} {platform.release()}"
    versions = f"paceline {__version__}, torch {_version('torch')}, {_mpi_library()}"
    return f"machine: {machine}\nversions: {versions}, Python {platform.python_version()}\n"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _mpi_library() -> str:
    """Asked in a process of its own: a launcher must not load MPI."""
    asked = subprocess.run(
        [sys.executable, "-c", _ASK_MPI], capture_output=True, text=True, timeout=60
    )
    return asked.stdout.strip().splitlines()[0] if asked.stdout.strip() else "no MPI"
