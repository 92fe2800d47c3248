"""Schedulers: one module each, all with the names of `interface.Scheduler`."""

import os
from collections.abc import Mapping

from paceline.cluster.schedulers import lsf, pbs, sge, slurm
from paceline.cluster.schedulers.interface import Allocation, Scheduler

SCHEDULERS: dict[str, Scheduler] = {"slurm": slurm, "sge": sge, "pbs": pbs, "lsf": lsf}
"""The first that knows this process wins: Slurm may set the variables of PBS, too."""

COMMANDS = tuple(
    dict.fromkeys(("ssh", *(name for one in SCHEDULERS.values() for name in one.COMMANDS)))
)
"""The commands of all schedulers, and the one that reaches hosts without any."""


def read_allocation(env: Mapping[str, str] = os.environ) -> Allocation | None:
    """The allocation that this process is in; None outside of any."""
    found = (scheduler.read_allocation(env) for scheduler in SCHEDULERS.values())
    return next((granted for granted in found if granted is not None), None)


def name_job(env: Mapping[str, str]) -> str:
    """The scheduler and the id of the job that this process is in; empty outside of one.

    >>> name_job({"SLURM_JOB_ID": "12"})
    'Slurm job 12'
    """
    ids = ((one.TITLE, one.read_job_id(env)) for one in SCHEDULERS.values())
    return next((f"{title} job {job}" for title, job in ids if job), "")
