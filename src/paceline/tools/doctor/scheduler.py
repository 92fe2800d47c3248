"""The scheduler: which one, what this job was granted, and what srun can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.cluster.commands import explain_failure
from paceline.cluster.hosts import Host
from paceline.cluster.schedulers import SCHEDULERS
from paceline.cluster.schedulers.interface import Allocation
from paceline.launch.preflight.node_info import NodeInfo
from paceline.launch.srun import fitting_plugins
from paceline.tools.doctor.check import Check


def check_scheduler(facts: NodeInfo) -> Iterator[Check]:
    found = [
        scheduler.TITLE
        for scheduler in SCHEDULERS.values()
        if all(mark in facts.commands for mark in scheduler.MARKS)
    ]
    if facts.job_problem:
        yield Check("scheduler", "fail", facts.job_problem, "Start a new shell or job.")
    elif facts.job:
        yield Check("scheduler", "ok", f"in {facts.job}")
    else:
        seen = f"{', '.join(found)} found; not in a job" if found else "none found"
        yield Check("scheduler", "ok", seen)


def check_srun(facts: NodeInfo, refused: Mapping[str, str]) -> list[Check]:
    """Whether srun offers a PMI by which ranks of our MPI find each other.

    `refused` has the plugins that srun lists but cannot use, and why.
    """
    in_slurm = facts.job.startswith("Slurm") and "srun" in facts.commands
    if not in_slurm or facts.libmpi_kind in (None, "unknown"):
        return []
    fitting = [name for name in fitting_pmi(facts) if name not in refused]
    if fitting and not _is_alone(facts):
        return [Check("srun", "ok", f"`--mpi={fitting[0]}` fits {facts.libmpi_kind}")]
    listed = ", ".join(facts.srun_mpi) or "nothing"
    unusable = f"; {', '.join(refused)}: {next(iter(refused.values()))}" if refused else ""
    seen = f"`srun --mpi=list` names {listed}{unusable}"
    if _is_alone(facts):
        return [_alone(facts, fitting, seen)]
    remedy = "Start ranks with `paceline run` or mpirun inside the job, not with srun."
    return [Check("srun", "warn", f"{seen}; none fits {facts.libmpi_kind}", remedy)]


def try_srun(facts: NodeInfo) -> dict[str, str]:
    """Which of the fitting plugins srun cannot use, and why: it also lists those whose libraries
    are missing. Nothing is tried outside of a Slurm job."""
    if not facts.job.startswith("Slurm"):
        return {}
    found = {}
    for name in fitting_pmi(facts):
        words = ("--overlap", "--nodes=1", "--ntasks=1", f"--mpi={name}", "true")
        problem = explain_failure([facts.commands["srun"], *words])
        if problem:
            found[name] = problem
    return found


def fitting_pmi(facts: NodeInfo) -> list[str]:
    """Those of srun's plugins that our MPI can use."""
    return fitting_plugins(facts.libmpi_kind, facts.srun_mpi)


def _is_alone(facts: NodeInfo) -> bool:
    """Whether srun has started this with others that it cannot find."""
    wanted = "PMIX_RANK" if facts.libmpi_kind == "openmpi" else "PMI_RANK"
    return facts.started_by == "slurm-step" and (facts.granted or 1) > 1 and wanted not in facts.pmi


def _alone(facts: NodeInfo, fitting: list[str], seen: str) -> Check:
    other = f"`srun --mpi={fitting[0]}`, or with " if fitting else ""
    return Check(
        "srun",
        "fail",
        f"srun started {facts.granted} tasks without the PMI that {facts.libmpi_kind} needs, so "
        f"each would train alone; {seen}",
        f"Start with {other}`paceline run -n {facts.granted}` (or train) from the job's script, "
        "or from a shell of `salloc`.",
    )


def check_slots(
    ranks: int | None, hosts: tuple[Host, ...], facts: dict[str, NodeInfo]
) -> list[Check]:
    """Whether the named hosts have slots for so many ranks."""
    slots = {h.name: h.slots or (facts[h.name].cores if h.name in facts else 1) for h in hosts}
    return _compare(ranks, slots, "the hosts take", "give more after the names (a:8,b:8)")


def check_own_cores(ranks: int | None, here: NodeInfo) -> list[Check]:
    """Whether this machine has a core for each rank."""
    if ranks is None or ranks <= here.cores:
        return []
    detail = f"-n {ranks} ranks were requested, and {here.cores} cores are usable: ranks share them"
    return [Check("slots", "warn", detail, f"Use -n {here.cores} or less.")]


def check_grant(ranks: int | None, allocation: Allocation) -> list[Check]:
    """Whether the job was granted so many ranks."""
    slots = {host.name: host.slots or 1 for host in allocation.hosts}
    option = SCHEDULERS[allocation.scheduler].RANKS_OPTION
    more = f"ask for more when you submit ({option})"
    return _compare(ranks, slots, "the job was granted", more)


def _compare(ranks: int | None, slots: dict[str, int], who: str, more: str) -> list[Check]:
    total = sum(slots.values())
    listed = ", ".join(f"{name}:{count}" for name, count in slots.items())
    if ranks is not None and ranks > total:
        detail = f"-n {ranks} ranks were requested, but {who} {total} ({listed})"
        return [Check("slots", "fail", detail, f"Use -n {total} or less, or {more}.")]
    return [Check("slots", "ok", f"{who} {total} ranks ({listed})")]
