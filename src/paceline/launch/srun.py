"""Slurm's srun as the launcher, where it offers a PMI that the ranks' MPI understands."""

import os
import shutil
from collections.abc import Iterable

from paceline.cluster.commands import ask_srun
from paceline.errors import LaunchError
from paceline.launch.job import Mpirun
from paceline.launch.preflight.node_info import kind_of_library
from paceline.launch.preflight.probe import read_library

PMI_OF = {
    "openmpi": ("pmix",),
    "mpich": ("pmi2", "pmix"),
    "intel": ("pmi2", "pmix"),
    "unknown": ("pmix", "pmi2"),
}
"""The PMI plugins of srun that each MPI can use, best first, as prefixes of their names."""


def find_srun() -> Mpirun:
    """Find srun, and its PMI plugin that fits the MPI of this Python."""
    path = shutil.which("srun")
    if path is None or "SLURM_JOB_ID" not in os.environ:
        reason = "there is no srun" if path is None else "this is no Slurm job"
        raise LaunchError(f"ranks cannot be started by srun: {reason}. Omit --launcher")
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
        "does not use: each rank would train alone. Omit --launcher (mpirun starts the "
        "ranks), or ask your support for Slurm's PMIx plugin"
    )


def fitting_plugins(kind: str | None, plugins: Iterable[str]) -> list[str]:
    """Those of srun's PMI plugins that this kind of MPI can use, best first.

    >>> fitting_plugins("openmpi", ["none", "pmi2", "pmix_v4", "pmix"])
    ['pmix', 'pmix_v4']
    """
    offered = sorted(plugins)
    wanted = PMI_OF.get(kind or "", ())
    return [name for language in wanted for name in offered if name.startswith(language)]
