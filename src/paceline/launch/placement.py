"""Where the ranks of a job go: hosts the user names, those a scheduler granted, or this machine."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.cluster.cores import available_cores, threads_per_rank
from paceline.cluster.hosts import SSH, Host, is_here, spread
from paceline.cluster.schedulers import SCHEDULERS
from paceline.cluster.schedulers.interface import Allocation, CommandReply
from paceline.cluster.schedulers.submit import ask_scheduler
from paceline.errors import LaunchError
from paceline.launch.job import Placement
from paceline.launch.preflight.check import check_hosts

_ANSWER_S = 20.0
_CROWDED = 2
"""Ranks of a core, with one thread each: two are often meant, to try something out."""


@dataclass(frozen=True)
class RankPlan:
    """How many ranks, with how many threads each, and where."""

    ranks: int
    threads: int
    placement: Placement


def plan_ranks(
    ranks: int | None,
    threads: int | None,
    hosts: Sequence[Host],
    allocation: Allocation | None,
    elastic: bool = False,
) -> RankPlan:
    """Plan a job on the hosts that were named, else on those granted, else on this machine.

    Without a number there is a rank for each slot; without threads, the cores are shared out. The
    ranks of an `elastic` job may become more.
    """
    if hosts:
        return _plan_on_named(ranks, threads, tuple(hosts), elastic)
    if allocation is not None and allocation.hosts:
        return _plan_on_granted(ranks, threads, allocation, elastic)
    cores = available_cores()
    count = ranks or cores
    if count > most_ranks_here():
        raise LaunchError(
            f"-n {count} ranks were asked for, and this machine of {cores} cores takes at most "
            f"{most_ranks_here()}; choose a lower -n, or name further machines by --hosts"
        )
    return RankPlan(count, threads or threads_per_rank(count, cores), Placement())


def without_host(plan: RankPlan, name: str) -> RankPlan | None:
    """The same plan on the other hosts; None if there are none.

    >>> plan = RankPlan(5, 1, Placement((Host("a", 2), Host("b", 3)), "ssh"))
    >>> without_host(plan, "b.site").ranks
    2
    """
    short = name.partition(".")[0]
    left = tuple(h for h in plan.placement.hosts if h.name.partition(".")[0] != short)
    if not left or len(left) == len(plan.placement.hosts):
        return None
    here = is_here(left[0].name)
    placement = replace(plan.placement, hosts=left, leads_here=here)
    return RankPlan(sum(host.slots or 1 for host in left), plan.threads, placement)


def without_rank(plan: RankPlan) -> RankPlan | None:
    """The same plan with one rank less, on its last host; None if it has only one."""
    if plan.ranks < 2:
        return None
    *hosts, last = plan.placement.hosts or (Host("", plan.ranks),)
    slots = (last.slots or 1) - 1
    left = (*hosts, Host(last.name, slots)) if slots else tuple(hosts)
    placement = replace(plan.placement, hosts=left if plan.placement.hosts else ())
    return RankPlan(plan.ranks - 1, plan.threads, placement)


def describe_crowd(ranks: int, threads: int, cores: int) -> str | None:
    """What to say of ranks that get far less than a core each; None: they do.

    >>> describe_crowd(64, 1, 2)
    '64 ranks share 2 cores and take turns, so starting and training them is slow; -n 2 fits'
    >>> describe_crowd(4, 1, 2)
    """
    if ranks * threads <= _CROWDED * cores:
        return None
    with_threads = f" of {threads} threads" if threads > 1 else ""
    fits = f"-n {max(1, cores // threads)}"
    return (
        f"{ranks} ranks{with_threads} share {cores} cores and take turns, so starting and training "
        f"them is slow; {fits} fits"
    )


def most_ranks_here() -> int:
    """The limit for one machine, above deliberate oversubscription: more exhausts its memory."""
    return max(256, 16 * available_cores())


def choose_remote_shell(allocation: Allocation) -> str | None:
    """The command that starts a program on another host of the allocation; None: mpirun knows."""
    return SCHEDULERS[allocation.scheduler].choose_remote_shell(_is_on_path, _ask)


def _plan_on_named(
    ranks: int | None, threads: int | None, hosts: tuple[Host, ...], elastic: bool
) -> RankPlan:
    facts = check_hosts([host.name for host in hosts if not is_here(host.name)])
    cores = {name: known.cores for name, known in facts.items()}
    known = [Host(h.name, h.slots or cores.get(h.name) or available_cores()) for h in hosts]
    slots = sum(host.slots or 1 for host in known)
    if ranks is not None and ranks > slots:
        raise LaunchError(
            f"-n {ranks} ranks were asked for, and the hosts take {slots} "
            f"({', '.join(f'{h.name}:{h.slots}' for h in known)}). Say how many each shall take, "
            f"as in --hosts {known[0].name}:{-(-ranks // len(known))}, or a lower -n"
        )
    placed = spread(ranks or slots, known)
    if threads is None:
        threads = min(
            threads_per_rank(h.slots or 1, cores.get(h.name) or available_cores()) for h in placed
        )
    return _plan(placed, threads, " ".join(SSH), None, _spare(known, placed) if elastic else ())


def _plan_on_granted(
    ranks: int | None, threads: int | None, allocation: Allocation, elastic: bool
) -> RankPlan:
    placed = spread(ranks or allocation.slots, allocation.hosts)
    if threads is None:
        threads = allocation.threads
    if threads is None:
        most = max(host.slots or 1 for host in placed)
        threads = threads_per_rank(most, available_cores())
    remote_shell = choose_remote_shell(allocation)
    spare = _spare(allocation.hosts, placed) if elastic else ()
    return _plan(placed, threads, remote_shell, allocation.here, spare)


def _spare(hosts: Sequence[Host], placed: Sequence[Host]) -> tuple[Host, ...]:
    taken = {host.name for host in placed}
    return tuple(host for host in hosts if host.name not in taken)


def _plan(
    hosts: tuple[Host, ...],
    threads: int,
    remote_shell: str | None,
    here: str | None,
    spare: tuple[Host, ...],
) -> RankPlan:
    ranks = sum(host.slots or 1 for host in hosts)
    leads_here = is_here(hosts[0].name, here)
    if len(hosts) == 1 and leads_here and not spare:
        return RankPlan(ranks, threads, Placement())
    return RankPlan(ranks, threads, Placement(hosts, remote_shell, leads_here, spare))


def _is_on_path(program: str) -> bool:
    return shutil.which(program) is not None


def _ask(command: Sequence[str]) -> CommandReply:
    return ask_scheduler(command, timeout_s=_ANSWER_S)
