"""Rank 0 lets ranks join and leave: as they are asked to, or in the place of those that are lost.

A thread takes requests, lets MPI start newcomers, and waits until they are ready. Then
`wants_change` is true, and rank 0 ends the generation of the world before its next step.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from paceline.cluster.hosts import parse_hosts
from paceline.comm import World
from paceline.config.stopping import ElasticConfig
from paceline.errors import PacelineError
from paceline.runtime.job_dir import HOSTS
from paceline.training.membership.requests import Answer, Desk, MembershipRequest
from paceline.training.membership.starting import Starter
from paceline.training.resume.carried import Change

if TYPE_CHECKING:
    from paceline.comm.joining import Newcomer

_log = logging.getLogger("paceline.training")

_LOOK_EVERY_S = 0.1
_STARTING_S = 600.0
"""How long a newcomer may take to get ready."""
_OTHERS = "name another host, or none"
_MOST_FAILURES = 3
"""Replacements in a row that may end before they are ready."""


@dataclass
class _Order:
    """Ranks that are to come or to go, since somebody asked for it (by a request of that key) or
    since others were lost (None)."""

    key: str | None
    hosts: Sequence[str | None] = ()
    """Of those that are to come."""
    leaving: tuple[int, ...] = ()
    newcomers: list[Newcomer] = field(default_factory=list)
    began: float = field(default_factory=monotonic)
    called: bool = False
    """The ranks have been told of it."""
    attempts: int = 0
    """Those before, at which others were lost."""


class Recruiter:
    """Changes the ranks of a run; on rank 0."""

    def __init__(self, run_dir: Path, limits: ElasticConfig, goes_on: bool) -> None:
        """`goes_on`: another rank that led was lost, or has left."""
        self.wants_change = False
        self._limits, self._desk = limits, Desk(run_dir, goes_on)
        self._size = 0
        self._nodes: list[str] = []
        self._hosts = parse_hosts(os.environ[HOSTS]) if os.environ.get(HOSTS) else ()
        self._orders: list[_Order] = []
        self._failures = 0
        self._guard = threading.Lock()
        self._is_over = threading.Event()
        self._starter = Starter(run_dir)
        self._thread = threading.Thread(target=self._work, name="paceline-recruiter", daemon=True)

    def begin_generation(self, world: World, nodes: Sequence[str], change: Change | None) -> None:
        """The ranks have changed: orders that they have been told of are done."""
        with self._guard:
            self._size, self._nodes = world.size, list(nodes)
            if self._desk.target is None:
                self._desk.target = world.size
            joined = world.size - len(change.joined) if change is not None else world.size
            for order in [order for order in self._orders if order.called]:
                self._orders.remove(order)
                if order.newcomers:
                    last = joined + len(order.newcomers)
                    self._conclude(order, range(joined, last) if last <= world.size else range(0))
                    joined = last
            self.wants_change = False
            if change is not None:
                gone = {*self._desk.deserted, *change.nodes}
                self._desk.deserted = sorted(gone - set(self._nodes))
            self._replace(change)
        if not self._thread.is_alive() and not self._is_over.is_set():
            self._thread.start()

    def call(self) -> tuple[list[Newcomer], tuple[int, ...]]:
        """The newcomers who are ready, and the ranks to leave. Newcomers that were called before
        ended when others were lost at that moment, so new ones are started."""
        with self._guard:
            for order in [order for order in self._orders if order.called and order.newcomers]:
                self._orders.remove(order)
                self._start_again(order)
            ready = [order for order in self._orders if self._is_ready(order)]
            for order in ready:
                is_new, order.called = not order.called, True
                if order.leaving and is_new:  # a last word: the next leader must not do it again
                    rest = _count(self._size - len(order.leaving))
                    self._desk.target = (self._desk.target or 0) - len(order.leaving)
                    self._answer(order, f"{_name(order.leaving)} left; {rest} now", final=True)
            newcomers = [newcomer for order in ready for newcomer in order.newcomers]
            return newcomers, tuple(sorted({rank for order in ready for rank in order.leaving}))

    def close(self) -> None:
        """The run is over; newcomers who wait are sent away."""
        self._is_over.set()
        with self._guard:
            for order in self._orders:
                self._answer(order, "the run has ended", refused=True)
                for newcomer in order.newcomers:
                    newcomer.dismiss()
            self._orders.clear()
        self._desk.close()

    def _work(self) -> None:
        while not self._is_over.wait(_LOOK_EVERY_S):
            for key, request in self._desk.take():
                with self._guard:
                    self._take(key, request)
            for order in list(self._orders):
                self._start_next(order)
            with self._guard:
                for order in list(self._orders):
                    self._check(order)
                self.wants_change = any(map(self._is_ready, self._orders))

    def _take(self, key: str, request: MembershipRequest) -> None:
        """Accept a request, or say why not."""
        if request.kind == "scale" and request.count == self._expected():
            text = f"{_count(request.count)}, as you want"
            self._desk.answer(key, Answer(text, is_final=True))
            return
        order, problem = self._plan(key, request)
        if problem is not None:
            self._desk.answer(key, Answer(problem, is_final=True, is_refused=True))
            return
        self._orders.append(order)
        count = len(order.hosts)
        if count:
            self._answer(order, f"{count} process{'es' * (count > 1)} to start")

    def _plan(self, key: str, request: MembershipRequest) -> tuple[_Order, str | None]:
        if request.kind == "scale":
            more = request.count - self._expected()
            last = range(self._size + more, self._size) if more < 0 else range(0)
            kind = "join" if more > 0 else "leave"
            return self._plan(key, MembershipRequest(kind, more, request.hosts, tuple(last)))
        if request.kind == "join":
            hosts = self._places(request)
            return _Order(key, hosts), self._why_not_join(hosts)
        on_hosts = [rank for rank, node in enumerate(self._nodes) if node in request.hosts]
        leaving = tuple(sorted({*request.ranks, *on_hosts}))
        return _Order(key, leaving=leaving), self._why_not_leave(leaving)

    def _places(self, request: MembershipRequest) -> list[str | None]:
        return list(request.hosts) or self._choose_hosts(request.count)

    def _choose_hosts(self, count: int) -> list[str | None]:
        """The hosts with the fewest ranks for their slots; None: there is only one."""
        deserted = {_shorten(name) for name in self._desk.deserted}
        hosts = [host for host in self._hosts if _shorten(host.name) not in deserted]
        if len(self._hosts) < 2:
            return [None] * count
        coming = [place for order in self._orders for place in order.hosts]
        ranks = Counter(_shorten(name) for name in [*self._nodes, *coming] if name is not None)
        chosen: list[str | None] = []
        for _ in range(count):
            host = min(hosts, key=lambda host: (ranks[_shorten(host.name)] + 1) / (host.slots or 1))
            ranks[_shorten(host.name)] += 1
            chosen.append(host.name)
        return chosen

    def _expected(self) -> int:
        """How many ranks there will be."""
        return self._size + sum(len(o.hosts) - len(o.leaving) for o in self._orders)

    def _why_not_join(self, places: Sequence[str | None]) -> str | None:
        most = self._limits.max
        if most is not None and self._expected() + len(places) > most:
            return f"{self._expected()} ranks and {len(places)} more are over elastic.max, {most}"
        known = list(dict.fromkeys([*(host.name for host in self._hosts), *self._nodes]))
        elsewhere = [place for place in places if place is not None and place not in known]
        if elsewhere:  # Open MPI 5.0.11 can be asked to take in others, but its daemons crash
            return (
                f"{elsewhere[0]} is not one of the job's hosts ({', '.join(known)}), and MPI takes "
                "in no others while it runs; name it when you start the job: --hosts with all "
                "hosts, and -n with the ranks to begin with"
            )
        left = [place for place in places if place in self._desk.deserted]
        if left:
            return f"all ranks have left {left[0]}, and MPI starts nothing there again; {_OTHERS}"
        return None

    def _why_not_leave(self, leaving: Sequence[int]) -> str | None:
        unknown = [rank for rank in leaving if not 0 <= rank < self._size]
        if unknown or not leaving:
            known = ", ".join(sorted(set(self._nodes)))
            return f"there is no such rank; there are ranks 0 to {self._size - 1}, on {known}"
        left = self._expected() - len(leaving)
        if left < max(1, self._limits.min):
            return f"{left} ranks would be left, and elastic.min is {self._limits.min}"
        return None

    def _replace(self, change: Change | None = None) -> None:
        """Others for ranks that are missing, where those were, if that machine is still there."""
        if not self._limits.replace or self._failures >= _MOST_FAILURES:
            return
        coming = sum(len(order.hosts) for order in self._orders if order.key is None)
        missing = max(0, (self._desk.target or 0) - self._size - coming)
        if self._limits.max is not None:
            missing = min(missing, self._limits.max - self._expected())
        places: list[str | None] = []
        if change is not None and len(set(self._nodes)) > 1:
            gone = zip(change.ranks, change.nodes, strict=True)
            lost = [node for rank, node in gone if rank not in change.asked]
            places += [node for node in lost if node in self._nodes][:missing]
        if missing > 0:
            places += self._choose_hosts(missing - len(places))
            self._orders.append(_Order(None, places))

    def _start_next(self, order: _Order) -> None:
        """Start what is missing; MPI takes about a second for each."""
        while len(order.newcomers) < len(order.hosts) and not self._is_over.is_set():
            place = order.hosts[len(order.newcomers)]
            try:
                order.newcomers.append(self._starter.start(place))
            except PacelineError as error:
                with self._guard:
                    self._give_up(order, str(error))
                return

    def _check(self, order: _Order) -> None:
        """Give up what cannot come about."""
        if any(newcomer.is_lost() for newcomer in order.newcomers) and not order.called:
            self._give_up(order, "a process that was to join ended before it was ready")
        elif order.hosts and monotonic() - order.began > _STARTING_S and not order.called:
            self._give_up(order, f"it was not ready after {_STARTING_S:.0f} s")

    def _give_up(self, order: _Order, why: str) -> None:
        for newcomer in order.newcomers:
            newcomer.dismiss()
        if order in self._orders:
            self._orders.remove(order)
        self._answer(order, why, refused=True)
        if order.key is None:
            self._failures += 1
            again = "no further attempt" if self._failures >= _MOST_FAILURES else "trying again"
            _log.warning("no replacement for a rank that was lost: %s; %s", why, again)
            self._replace()

    def _start_again(self, order: _Order) -> None:
        """Others were lost while these were let in."""
        attempts = order.attempts + 1
        if attempts < _MOST_FAILURES:
            self._orders.append(_Order(order.key, order.hosts, attempts=attempts))
        else:
            self._answer(order, "others were lost meanwhile, each time; ask again", refused=True)

    def _is_ready(self, order: _Order) -> bool:
        all_there = len(order.newcomers) == len(order.hosts)
        return all_there and all(newcomer.is_ready() for newcomer in order.newcomers)

    def _conclude(self, order: _Order, ranks: Sequence[int]) -> None:
        if not ranks:
            self._start_again(order)
            return
        if order.key is None:
            self._failures = 0
        else:
            self._desk.target = (self._desk.target or 0) + len(ranks)
        self._answer(order, f"{_name(ranks)} joined; {_count(self._size)} now", final=True)

    def _answer(self, order: _Order, text: str, final: bool = False, refused: bool = False) -> None:
        if order.key is not None:
            self._desk.answer(order.key, Answer(text, final or refused, refused))


def _shorten(host: str) -> str:
    return host.partition(".")[0]


def _name(ranks: Sequence[int]) -> str:
    """
    >>> _name([2]), _name([0, 3])
    ('rank 2', 'ranks 0, 3')
    """
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _count(ranks: int) -> str:
    return f"there {'are' if ranks > 1 else 'is'} {ranks} rank{'s' * (ranks > 1)}"
