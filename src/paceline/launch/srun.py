"""Slurm's srun as the launcher, where it speaks the language of the MPI that ranks use."""

import os
import shutil
from collections.abc import Iterable

from paceline.cluster.commands import ask_srun
from paceline.errors import LaunchError
from paceline.launch.job import Mpirun
from paceline.launch.preflight.node_info import kind_of_library
from paceline.launch.preflight.probe import read_library

SPEAKS = {
    "openmpi": ("pmix",),
    "mpich": ("pmi2", "pmix"),
    "intel": ("pmi2", "pmix"),
    "unknown": ("pmix", "pmi2"),
}
"""What ranks of each MPI speak with srun, best first, by the beginnings of its plugins' names."""


def find_srun() -> Mpirun:
    """Find srun, and the plugin by which it and the MPI of this Python understand each other."""
    path = shutil.which("srun")
    if path is None or "SLURM_JOB_ID" not in os.environ:
        reason = "there is no srun" if path is None else "this is no Slurm job"
        raise LaunchError(f"ranks cannot be started by srun: {reason}. Leave --launcher away")
    library = read_library()
    if "libmpi_version" not in library:
        raise LaunchError(f"the MPI library cannot be used: {library['libmpi_problem']}")
    return Mpirun(path, "srun", choose_pmi(library["libmpi_version"], ask_srun({"srun": path})))


def choose_pmi(library: str, plugins: Iterable[str]) -> str:
    """The plugin that fits a library of this version.

    >>> choose_pmi("MPICH Version: 5.0.2", ["none", "pmi2", "cray_shasta"])
    'pmi2'
    """
    offered = list(plugins)
    fitting = fitting_plugins(kind_of_library(library), offered)
    if fitting:
        return fitting[0]
    raise LaunchError(
        f"srun offers {', '.join(offered) or 'nothing'}, which {' '.join(library.split()[:4])} "
        "does not speak: each rank would train alone. Leave --launcher away (mpirun starts the "
        "ranks), or ask your support for Slurm's PMIx plugin"
    )


def fitting_plugins(kind: str | None, plugins: Iterable[str]) -> list[str]:
    """Those of srun's plugins that ranks of this kind of MPI understand, best first.

    >>> fitting_plugins("openmpi", ["none", "pmi2", "pmix_v4", "pmix"])
    ['pmix', 'pmix_v4']
    """
    offered = sorted(plugins)
    wanted = SPEAKS.get(kind or "", ())
    return [name for language in wanted for name in offered if name.startswith(language)]
