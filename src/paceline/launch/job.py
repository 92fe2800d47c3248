"""What to start, with what and where: plain values that the launcher's modules share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.cluster.hosts import Host


@dataclass(frozen=True)
class Mpirun:
    """A launcher: its path and its kind (openmpi, mpich, intel, srun, unknown)."""

    path: str
    kind: str
    pmi: str | None = None
    """The PMI that srun offers to the ranks: pmix or pmi2."""


@dataclass(frozen=True)
class Machine:
    """What `render_command` must know about this machine and this terminal.

    `terminal` is the device on our stdout and `columns` its width; None if it is no terminal.
    """

    cores: int
    numa_nodes: int
    is_root: bool
    environ: Mapping[str, str]
    has_ssh: bool = True
    terminal: str | None = None
    columns: int | None = None
    alone: bool = False
    """mpirun knows of no other hosts: ranks stay here, unless hosts are named."""


@dataclass(frozen=True)
class Placement:
    """Where ranks go: `slots` of them to each host; with no host named, all stay on this machine.

    `remote_shell` is the command that starts a program on another host, as ssh does; None leaves
    it to the launcher, which knows the scheduler (srun under Slurm).
    """

    hosts: tuple[Host, ...] = ()
    remote_shell: str | None = None
    leads_here: bool = True
    """Whether rank 0 is on this machine, and sees its terminal and its folders."""
    spare: tuple[Host, ...] = ()
    """Hosts that were named or granted and get no rank, unless some join an elastic run."""


@dataclass(frozen=True)
class Job:
    """What to start: ranks with their threads, all running one command."""

    ranks: int
    threads: int
    command: tuple[str, ...]
    placement: Placement = field(default_factory=Placement)
    variables: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the ranks, which is this machine's otherwise."""
    elastic: bool = False
    """Ranks may be lost, and the others go on."""


@dataclass(frozen=True)
class LauncherProcess:
    """The process that starts the ranks: `kind` as in Mpirun, `name` as in messages."""

    name: str = "mpirun"
    kind: str = "openmpi"
    hosts: tuple[str, ...] = ()
    """Other machines that it has to reach before any rank can start."""
    ranks: int = 1
    elastic: bool = False
    """Whether ranks may be lost: then the run itself says how it ended."""

    @property
    def is_hydra(self) -> bool:
        return self.kind in ("mpich", "intel")
