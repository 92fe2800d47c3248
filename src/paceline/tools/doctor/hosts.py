"""The other hosts: can they be reached, do they have the same software, the same time?"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from paceline.cluster.hosts import is_here
from paceline.cluster.network import outside_addresses
from paceline.launch.preflight.check import HostReply, compare, wrap_remote
from paceline.launch.preflight.node_info import NodeInfo
from paceline.tools.doctor.check import Check
from paceline.tools.doctor.reach import Reach, try_both_ways

_SAME = ("Python", "Paceline", "numpy", "torch", "mpi4py", "MPI library", "mpirun")
_AT_ONCE = 16
_REACH = (sys.executable, "-m", "paceline.tools.doctor.reach")


def check_answers(
    answers: Mapping[str, HostReply], remote_shell: str, advice: str = ""
) -> list[Check]:
    """Whether the hosts accepted us and ran the probe; advice is added to each remedy."""
    name = f"start by {remote_shell}"
    failed = [
        Check(name, "fail", one.problem.what, f"{one.problem.remedy}{advice}", (host,))
        for host, one in answers.items()
        if one.problem is not None
    ]
    reached = [host for host, one in answers.items() if one.problem is None and not is_here(host)]
    if reached:
        failed.append(Check(name, "ok", f"{', '.join(reached)} answered"))
    return failed


def check_sameness(facts: Mapping[str, NodeInfo]) -> list[Check]:
    """Whether the hosts have the same software, names of their own and the same time."""
    if len(facts) < 2:
        return []
    problems = compare(facts)
    found = [Check(one.subject, "fail", one.what, one.remedy, one.hosts) for one in problems]
    subjects = {one.subject for one in problems}
    if subjects.isdisjoint(_SAME):
        found.append(Check("same software", "ok", f"{', '.join(_SAME)} are alike on all hosts"))
    if "clock" not in subjects:
        worst = max(abs(one.skew_s) for one in facts.values())
        found.append(Check("clock", "ok", f"within {max(worst, 1):.0f} s on all hosts"))
    return found


def check_ports(names: Sequence[str], remote_shell: Sequence[str], here: NodeInfo) -> list[Check]:
    """Whether this host and each other can connect at any port: ssh is not enough."""
    others = [name for name in names if not is_here(name)]
    if not others:
        return []
    addresses = outside_addresses(here.interfaces)

    def try_one(name: str) -> Check:
        reach = try_both_ways(name, wrap_remote(remote_shell, name, _REACH), addresses)
        return judge_reach(name, here.host, reach)

    with ThreadPoolExecutor(min(len(others), _AT_ONCE)) as pool:
        return _join(list(pool.map(try_one, others)))


def judge_reach(name: str, here: str, reach: Reach) -> Check:
    """Say which direction is blocked."""
    blocked = [
        f"{way} ({problem})"
        for way, problem in ((f"{here} to {name}", reach.there), (f"{name} to {here}", reach.back))
        if problem
    ]
    if not blocked:
        return Check("ports", "ok", name)
    return Check(
        "ports",
        "fail",
        f"connections are blocked from {' and from '.join(blocked)}",
        "Ranks connect to each other at ports that the system chooses: let all TCP between the "
        "hosts through the firewall (see `nft list ruleset`, `iptables -L`).",
        (name,),
    )


def _join(checks: Sequence[Check]) -> list[Check]:
    """One line for all hosts that can be reached."""
    failed = [one for one in checks if one.verdict != "ok"]
    fine = [one.detail for one in checks if one.verdict == "ok"]
    line = f"any port is open between this host and {', '.join(fine)}, both ways"
    return failed + ([Check("ports", "ok", line)] if fine else [])
