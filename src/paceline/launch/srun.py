"""Slurm's srun as the launcher, where it speaks the language of the MPI that ranks use."""

import os
import shutil
import subprocess
import sys

from paceline.errors import LaunchError
from paceline.launch.command import Mpirun

_ANSWER_S = 30
_ASK_LIBRARY = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    "print(MPI.Get_library_version())"
)
_SPEAKS = (
    ("Open MPI", "openmpi", ("pmix",)),
    ("Intel(R) MPI", "intel", ("pmi2", "pmix")),
    ("MPICH", "mpich", ("pmi2", "pmix")),
)
"""A mark in the library's version, its kind, and what it can speak with srun, best first."""


def find_srun() -> Mpirun:
    """Find srun, and the plugin by which it and the MPI of this Python understand each other."""
    path = shutil.which("srun")
    if path is None or "SLURM_JOB_ID" not in os.environ:
        reason = "there is no srun" if path is None else "this is no Slurm job"
        raise LaunchError(f"ranks cannot be started by srun: {reason}. Leave --launcher away")
    library = _say([sys.executable, "-c", _ASK_LIBRARY])
    listed = _say([path, "--mpi=list"])
    return Mpirun(path, "srun", choose_pmi(library, listed))


def choose_pmi(library: str, listed: str) -> str:
    """The plugin that fits, from the library's version and from what `srun --mpi=list` says.

    >>> choose_pmi("MPICH Version: 5.0.2", "MPI plugin types are... none pmi2 cray_shasta")
    'pmi2'
    """
    plugins = {word.strip(",") for word in listed.split()}
    known = next((speaks for mark, _, speaks in _SPEAKS if mark in library), ("pmix", "pmi2"))
    for wanted in known:
        fits = sorted(name for name in plugins if name == wanted or name.startswith(f"{wanted}_v"))
        if fits:
            return wanted if wanted in fits else fits[-1]
    offered = sorted(plugins & {"none", "pmi2", "cray_shasta"})
    raise LaunchError(
        f"srun offers {', '.join(offered) or 'nothing'}, but {' '.join(library.split()[:4])} needs "
        f"{' or '.join(known)}: each rank would train alone. Leave --launcher away (mpirun starts "
        "the ranks), or ask your support for Slurm's PMIx plugin"
    )


def _say(argv: list[str]) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_ANSWER_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{argv[0]} did not answer: {error}") from None
    # Slurm tells its plugins on stderr.
    return done.stdout + done.stderr
