"""Facts about a node: plain values, so that they can be sent as JSON and made up in tests."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field

from paceline.errors import LaunchError

KINDS = {"Open MPI": "openmpi", "MPICH": "mpich", "Intel(R) MPI": "intel", "MVAPICH": "mpich"}
"""What the version of an MPI library says, and the kind of mpirun that fits it."""


@dataclass(frozen=True, kw_only=True)
class NodeInfo:
    """One node, as the probe found it. None and empty mean: absent, or unreadable."""

    host: str = ""
    resolves_to: list[str] = field(default_factory=list)
    """The addresses of its own name."""
    interfaces: dict[str, list[str]] = field(default_factory=dict)
    """Addresses of each interface that is up."""
    user: str = ""
    system: str = ""
    time_s: float = 0.0
    skew_s: float = 0.0
    """How far its clock is from that of the asking host, at least."""

    python: str = ""
    executable: str = ""
    paceline: str = ""
    digest: str = ""
    """Of Paceline's own source files: distinguishes two checkouts of one version."""
    mpi4py: str | None = None
    torch: str | None = None
    numpy: str | None = None

    libmpi: str | None = None
    libmpi_why: str = ""
    """Why this library and no other."""
    libmpi_version: str | None = None
    libmpi_standard: str | None = None
    libmpi_problem: str = ""
    ulfm: bool | None = None
    """Whether the library was built with fault tolerance; None if unknown."""
    mpirun: str | None = None
    mpirun_kind: str | None = None
    mpirun_version: str | None = None
    mpirun_problem: str = ""

    cpus: int = 0
    """Processors of the machine; `affinity` are those that this process may run on."""
    affinity: list[int] = field(default_factory=list)
    quota: float | None = None
    """Processors' worth of time that the cgroup allows."""
    cores: int = 0
    """Physical cores that may be used, within affinity and quota."""
    threads: str | None = None
    """OMP_NUM_THREADS as it is set."""
    memory_bytes: int = 0
    memory_free_bytes: int = 0
    memory_limit_bytes: int | None = None
    """What the cgroup or the scheduler allows."""
    shm_bytes: int = 0
    shm_free_bytes: int = 0
    gpus: list[str] = field(default_factory=list)

    commands: dict[str, str] = field(default_factory=dict)
    """Commands of schedulers, and ssh, that were found, and where."""
    srun_mpi: list[str] = field(default_factory=list)
    """The plugins that `srun --mpi=list` names."""
    pmi: list[str] = field(default_factory=list)
    """Variables by which ranks find each other (PMI) that are set in this process."""
    job: str = ""
    """The job we are in, for example "Slurm job 12"."""
    job_problem: str = ""
    started_by: str = "none"
    """The launcher or batch system, as `cluster.detect` names it."""
    granted: int | None = None
    """The ranks that the job was granted."""

    @property
    def libmpi_kind(self) -> str | None:
        """The kind of mpirun that fits the library; None without a library."""
        return None if self.libmpi_version is None else kind_of_library(self.libmpi_version)


def kind_of_library(version: str) -> str:
    """The kind of mpirun that fits a library with this version text.

    >>> kind_of_library("Open MPI v5.0.11, package: ...")
    'openmpi'
    """
    return next((kind for mark, kind in KINDS.items() if mark in version), "unknown")


def to_json(facts: NodeInfo) -> str:
    """One line."""
    return json.dumps(dataclasses.asdict(facts))


def from_json(text: str) -> NodeInfo:
    """Read what another host's probe printed, last line first: its shell may print a greeting.

    Fields of other versions of Paceline are ignored.

    >>> from_json('Welcome!\\n{"host": "n1", "later": 1}').host
    'n1'
    """
    names = {one.name for one in dataclasses.fields(NodeInfo)}
    for line in reversed(text.splitlines()):
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and "host" in values:
            return NodeInfo(**{name: value for name, value in values.items() if name in names})
    raise LaunchError(f"the probe of a node printed nothing readable: {text.strip()!r}")
