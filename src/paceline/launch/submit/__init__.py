"""Hand a command to a scheduler: one file for each, all with the names of `scheduler.Scheduler`."""

from paceline.launch.submit import lsf, pbs, sge, slurm
from paceline.launch.submit.scheduler import Scheduler

SCHEDULERS: dict[str, Scheduler] = {"slurm": slurm, "sge": sge, "pbs": pbs, "lsf": lsf}
