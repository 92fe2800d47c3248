"""All checks in the order of the page: this node, the other hosts, then a world of ranks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.cluster.detect import detect
from paceline.cluster.hosts import SSH, Host, is_here
from paceline.cluster.schedulers.interface import Allocation
from paceline.errors import LaunchError
from paceline.launch.placement import plan_ranks
from paceline.launch.preflight.check import ask_hosts
from paceline.launch.preflight.node_info import NodeInfo
from paceline.launch.preflight.probe import read_node_info
from paceline.tools.doctor.check import Check, NodeCheck, check_nodes
from paceline.tools.doctor.hosts import check_answers, check_ports, check_sameness
from paceline.tools.doctor.machine import MACHINE_CHECKS
from paceline.tools.doctor.mpi import MPI_CHECKS
from paceline.tools.doctor.network import check_interfaces, check_routes, make_name_check
from paceline.tools.doctor.page import Diagnosis
from paceline.tools.doctor.python import PYTHON_CHECKS
from paceline.tools.doctor.scheduler import (
    check_grant,
    check_own_cores,
    check_scheduler,
    check_slots,
    check_srun,
    try_srun,
)
from paceline.tools.doctor.world import judge_trial, run_trial

_SRUN = (
    *("srun", "--overlap", "--nodes=1", "--ntasks=1", "--mpi=none", "--cpu-bind=none", "--quiet"),
    *("--nodelist", "{host}", "sh", "-c"),
)
"""How Slurm runs one program on one host of a job."""


@dataclass(frozen=True)
class Question:
    """What doctor shall look at: named hosts, else those of a job, else this machine."""

    hosts: tuple[Host, ...] = ()
    allocation: Allocation | None = None
    ranks: int | None = None
    quick: bool = False

    @property
    def names(self) -> list[str]:
        granted = () if self.allocation is None else self.allocation.hosts
        return [host.name for host in self.hosts or granted]


def diagnose(question: Question) -> Diagnosis:
    """Check everything, then start ranks, unless it is clear that they cannot start."""
    here = read_node_info()
    remote_shell = choose_remote_shell(question)
    others = [name for name in question.names if not is_here(name)]
    answers = ask_hosts(others, remote_shell)
    facts = {here.host: here}
    facts |= {name: one.facts for name, one in answers.items() if one.facts is not None}
    between = check_answers(answers, remote_shell[0], _advise(question, remote_shell))
    between += check_sameness(facts)
    between += check_routes(others, here.interfaces)
    if not any(check.verdict == "fail" for check in between):
        between += check_ports(others, remote_shell, here)
    alone = check_nodes(facts, _node_checks(several=len(facts) > 1))
    asked = [*check_scheduler(here), *check_srun(here, try_srun(here))]
    asked += _check_slots(question, facts, here)
    checks = [*alone, *asked, *between]
    return _try_world(question, facts, checks, between)


def choose_remote_shell(question: Question) -> tuple[str, ...]:
    """What runs a program on another host: ssh, or the scheduler's own command."""
    if question.hosts or question.allocation is None:
        return SSH
    plan = plan_ranks(len(question.names), 1, (), question.allocation)
    if plan.placement.remote_shell is not None:
        return tuple(shlex.split(plan.placement.remote_shell))
    return _SRUN if question.allocation.scheduler == "slurm" else SSH


def _advise(question: Question, remote_shell: tuple[str, ...]) -> str:
    """A job of Grid Engine needs ssh only if its parallel environment starts no ranks."""
    if question.allocation is None or question.allocation.scheduler != "sge" or remote_shell != SSH:
        return ""
    return (
        " Or ask for a parallel environment that starts ranks itself: control_slaves TRUE in "
        "`qconf -sp NAME`."
    )


def _node_checks(several: bool) -> Sequence[NodeCheck]:
    network = (make_name_check(several), check_interfaces)
    return (*PYTHON_CHECKS, *MPI_CHECKS, *MACHINE_CHECKS, *network)


def _check_slots(question: Question, facts: dict[str, NodeInfo], here: NodeInfo) -> list[Check]:
    if question.hosts:
        known = facts | {name: here for name in question.names if is_here(name)}
        return check_slots(question.ranks, question.hosts, known)
    if question.allocation is not None:
        return check_grant(question.ranks, question.allocation)
    return check_own_cores(question.ranks, here)


def _try_world(
    question: Question, facts: dict[str, NodeInfo], checks: list[Check], between: list[Check]
) -> Diagnosis:
    if question.quick:
        return Diagnosis(tuple(checks), facts, None, tried=False)
    blocked = next((check.name for check in between if check.verdict == "fail"), None)
    if blocked is not None:
        detail = f"no ranks were started, since they cannot start: see {blocked} above"
        checks.append(Check("world", "warn", detail, "Fix that first."))
        return Diagnosis(tuple(checks), facts)
    started = _started_by()
    if started:
        checks.append(started)
        return Diagnosis(tuple(checks), facts)
    lacks_slots = any(check.name == "slots" and check.verdict == "fail" for check in checks)
    ranks, options = trial_options(question, None if lacks_slots else question.ranks)
    trial = run_trial(options)
    checks += judge_trial(trial, ranks, several=len(question.names) > 1)
    return Diagnosis(tuple(checks), facts, trial.seen)


def trial_options(question: Question, ranks: int | None) -> tuple[int, list[str]]:
    """How many ranks to start, and the options of `paceline run` for that: as many as you plan to
    use, else one on each host, but at least two."""
    count = ranks or max(len(question.names), 2)
    if not question.hosts:
        return count, ["-n", str(count)]
    if ranks:
        hosts = [h.name if h.slots is None else f"{h.name}:{h.slots}" for h in question.hosts]
    else:
        each = 1 if len(question.hosts) > 1 else 2
        hosts = [f"{host.name}:{each}" for host in question.hosts]
    return count, ["-n", str(count), "--hosts", ",".join(hosts)]


def _started_by() -> Check | None:
    """A failure if a launcher started doctor: ranks cannot start other ranks."""
    try:
        environment = detect()
    except LaunchError:  # reported by the scheduler's checks
        return None
    if not environment.launched:
        return None
    return Check(
        "world",
        "fail",
        f"{environment.kind} has started this as one of {environment.size} ranks, and doctor "
        "starts its own",
        "Start it once: `paceline doctor`, in the job's script or shell.",
    )
