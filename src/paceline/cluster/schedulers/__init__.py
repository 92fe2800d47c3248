"""Hand a command to a scheduler: one file for each, all with the names of `scheduler.Scheduler`."""

from paceline.cluster.schedulers import lsf, pbs, sge, slurm
from paceline.cluster.schedulers.interface import Scheduler

SCHEDULERS: dict[str, Scheduler] = {"slurm": slurm, "sge": sge, "pbs": pbs, "lsf": lsf}
