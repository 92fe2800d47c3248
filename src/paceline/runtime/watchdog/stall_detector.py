"""Tell a stall from work: heartbeats of all ranks go in, findings come out. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

State = Literal["waiting", "busy", "left"]

HEARTBEAT_BYTES = 1024
"""The length of an encoded heartbeat; any `WHERE_LENGTH` characters fit into it."""
WHERE_LENGTH = 100

LEFT_S = 5.0
"""How long ranks wait for one that has ended before this is reported."""

SILENT_S = 10.0
"""How long rank 0, which is about to end, waits for a heartbeat of a silent rank."""

GOING_ON_S = 60.0
"""How long the others may take to go on when ranks that hang are killed."""

_NAMED = 6
"""Ranks that a message names; it counts the others."""


@dataclass(frozen=True)
class Heartbeat:
    """What a rank reports about itself.

    `progress` grows whenever the rank makes progress, and `since_s` is how long ago it last did. A
    rank outside of any section makes progress by entering one. `waiting_s` is how long it has
    waited since.
    """

    progress: int = 0
    step: int | None = None
    state: State = "busy"
    where: str = ""
    since_s: float = 0.0
    waiting_s: float = 0.0
    warning_s: float | None = None
    """None outside of any section: there this rank's waiting is not judged."""
    timeout_s: float | None = None


def encode(heartbeat: Heartbeat, buffer: npt.NDArray[np.uint8]) -> None:
    """Write a heartbeat into a buffer of `HEARTBEAT_BYTES`."""
    facts = asdict(heartbeat) | {"where": heartbeat.where[:WHERE_LENGTH]}
    text = json.dumps(facts, ensure_ascii=False).encode(errors="replace")
    buffer[:] = ord(" ")
    buffer[: len(text)] = np.frombuffer(text, np.uint8)


def decode(buffer: npt.NDArray[np.uint8]) -> Heartbeat:
    """The heartbeat in a buffer."""
    return Heartbeat(**json.loads(buffer.tobytes()))


@dataclass(frozen=True)
class Finding:
    """Something to say on stderr, or, with `end`, the reason to end all ranks."""

    text: str
    end: bool = False
    facts: str = ""
    hung: tuple[tuple[int, int], ...] = ()
    """The ranks that hang for certain, each with a rank of its node that can kill it: then the
    others can go on, if this MPI or the launcher lets them."""


class StallDetector:
    """Knows the last heartbeat of every rank, and says when nothing moves any more.

    A stall: a rank in a section waits for as long as its section allows, and meanwhile no rank
    makes progress. Ranks that are slow but move, or wait for one that moves, do not stall. The
    caller passes the time, in seconds since any origin.
    """

    def __init__(self, nodes: Sequence[str], now_s: float) -> None:
        self._nodes = tuple(nodes)
        self._heartbeats = [Heartbeat()] * len(nodes)
        self._heard_s = [now_s] * len(nodes)
        self._warned_s: float | None = None
        self._stalled_s = 0.0
        self._hung_s: float | None = None

    def hear(self, rank: int, heartbeat: Heartbeat, now_s: float) -> None:
        """Record a rank's heartbeat; of a rank that has left, the first that says so."""
        if self._heartbeats[rank].state == "left":
            return
        self._heartbeats[rank], self._heard_s[rank] = heartbeat, now_s

    def look(self, now_s: float) -> Finding | None:
        """What to report now; each warning comes once per stall."""
        return self._judge_left(now_s) or self._judge_stall(now_s)

    def is_last(self, rank: int, now_s: float) -> bool:
        """Whether every other rank has left or is silent."""
        return all(
            heartbeat.state == "left" or now_s - heard_s >= SILENT_S
            for other, (heartbeat, heard_s) in enumerate(
                zip(self._heartbeats, self._heard_s, strict=True)
            )
            if other != rank
        )

    @property
    def has_warned(self) -> bool:
        """Whether a stall was reported and its end was not."""
        return self._warned_s is not None

    def has_left(self, rank: int) -> bool:
        """Whether this rank has said that it ends."""
        return self._heartbeats[rank].state == "left"

    def silence_s(self, rank: int, now_s: float) -> float:
        """How long ago this rank was last heard of."""
        return now_s - self._heard_s[rank]

    def shortest_warning_s(self) -> float:
        """The shortest time after which some rank wants a warning."""
        wanted = (
            heartbeat.warning_s for heartbeat in self._heartbeats if heartbeat.warning_s is not None
        )
        return min(wanted, default=float("inf"))

    def known(self) -> dict[str, dict[str, object]]:
        """What is known of each rank, for observers outside of the job."""
        return {
            str(rank): {
                "node": node,
                "step": heartbeat.step,
                "state": heartbeat.state,
                "where": heartbeat.where,
            }
            for rank, (node, heartbeat) in enumerate(
                zip(self._nodes, self._heartbeats, strict=True)
            )
        }

    def _judge_left(self, now_s: float) -> Finding | None:
        """Whether ranks wait for one that has ended, and for nobody else.

        A rank that is busy or silent may be the one that the others wait for. And heartbeats from
        before the last one ended do not count: its end may have been what they waited for.
        """
        left, stay = self._in_state("left"), self._ranks_that_stay()
        if not left or not stay:
            return None
        ended_s = max(self._heard_s[rank] for rank in left)
        for rank in stay:
            heartbeat = self._heartbeats[rank]
            late = heartbeat.waiting_s >= LEFT_S and self._heard_s[rank] >= ended_s + LEFT_S
            if heartbeat.state != "waiting" or not late:
                return None
        has, it = ("has", "it") if len(left) == 1 else ("have", "them")
        return Finding(
            f"{self._named(left)} {has} ended while {_ranks(stay)} {_wait(stay)} for {it} "
            f"({self._places(stay)}). Every rank must make the same calls before it ends; look "
            "for an exit, a return or a shorter loop that one rank takes alone.",
            end=True,
        )

    def _judge_stall(self, now_s: float) -> Finding | None:
        since_s = (self._since_s(rank, now_s) for rank in self._ranks_that_stay())
        still_s = min(since_s, default=0.0)
        if self._warned_s is not None and still_s < self._warned_s:
            self._warned_s = None
            return Finding(f"moving again after {self._stalled_s:.0f} s")
        waiting = [self._heartbeats[rank] for rank in self._in_state("waiting")]
        stalls = [(min(still_s, heartbeat.waiting_s), heartbeat) for heartbeat in waiting]
        late = [(s, p) for s, p in stalls if p.warning_s is not None and s >= p.warning_s]
        if not late:
            return None
        self._stalled_s = max(s for s, _ in late)
        if any(p.timeout_s is not None and s >= p.timeout_s for s, p in late):
            return self._judge_late(now_s)
        if self._warned_s is not None:
            return None
        self._warned_s = self._stalled_s
        return Finding(self._describe(now_s)[0])

    def _judge_late(self, now_s: float) -> Finding | None:
        """Ranks that hang are named once; others must then go on without them."""
        if self._hung_s is not None and now_s - self._hung_s < GOING_ON_S:
            return None
        hung = self._find_hung(now_s) if self._hung_s is None else ()
        self._hung_s = now_s
        facts, remedy = self._describe(now_s)
        text = f"{facts}; ended (stall_timeout_s). {remedy}"
        return Finding(text, end=True, facts=facts, hung=hung)

    def _ranks_that_stay(self) -> list[int]:
        return [
            rank for rank, heartbeat in enumerate(self._heartbeats) if heartbeat.state != "left"
        ]

    def _in_state(self, state: State) -> list[int]:
        return [rank for rank, heartbeat in enumerate(self._heartbeats) if heartbeat.state == state]

    def _since_s(self, rank: int, now_s: float) -> float:
        return self._heartbeats[rank].since_s + self.silence_s(rank, now_s)

    def _is_silent(self, rank: int, now_s: float) -> bool:
        # Less than all of the stall: its last heartbeat may have come a moment after it began.
        return self.silence_s(rank, now_s) >= self._stalled_s / 2

    def _sort(self, now_s: float) -> tuple[list[int], list[int], list[int]]:
        """Ranks that are silent, those that wait, and all that do not wait."""
        silent = [rank for rank in self._ranks_that_stay() if self._is_silent(rank, now_s)]
        waiting = [rank for rank in self._in_state("waiting") if rank not in silent]
        missing = [rank for rank in range(len(self._heartbeats)) if rank not in waiting]
        return silent, waiting, missing

    def _find_hung(self, now_s: float) -> tuple[tuple[int, int], ...]:
        """Who hangs for certain, each with who can kill it.

        Not more than half of the ranks, for then the others may be the ones that are cut off; and
        a silent rank only if another of its node is heard of: else the node may be lost.
        """
        silent, waiting, missing = self._sort(now_s)
        if 2 * len(missing) > len(self._heartbeats) or self._in_state("left"):
            return ()
        found = []
        for rank in missing:
            near = [other for other in waiting if self._nodes[other] == self._nodes[rank]]
            able = [*near, *([rank] if rank not in silent else [])]
            if not able:
                return ()
            found.append((rank, able[0]))
        return tuple(found)

    def _describe(self, now_s: float) -> tuple[str, str]:
        """The facts of a stall, and what to do."""
        steps = [heartbeat.step for heartbeat in self._heartbeats if heartbeat.step is not None]
        at_step = f" at step {max(steps)}" if steps else ""
        head = f"nothing has moved for {self._stalled_s:.0f} s{at_step}: "
        silent, waiting, missing = self._sort(now_s)
        if not missing:
            return (
                f"{head}all ranks wait for each other ({self._places(waiting)})",
                "Every rank must make the same calls in the same order; if they do and the network "
                "is slow, set a longer stall_timeout_s.",
            )
        causes = [self._cause(rank, rank in silent, now_s) for rank in missing[:_NAMED]]
        more = [f"{len(missing) - _NAMED} more"] if len(missing) > _NAMED else []
        remedy = (
            "Look whether its node is up and what the process does there."
            if silent
            else "Mend what it does there, or set a longer stall_timeout_s if it may take so long."
        )
        who = f"{_ranks(waiting)} {_wait(waiting)} for {' and for '.join(causes + more)}"
        return head + who, remedy

    def _cause(self, rank: int, silent: bool, now_s: float) -> str:
        heartbeat, name = self._heartbeats[rank], self._named([rank])
        if silent:
            return (
                f"{name}, which has not been heard of for {self.silence_s(rank, now_s):.0f} s "
                "(stopped? is its node up?)"
            )
        if heartbeat.state == "left":
            return f"{name}, which has ended"
        return f"{name}, busy in {heartbeat.where}"

    def _named(self, ranks: Sequence[int]) -> str:
        shown = [f"rank {rank} ({self._nodes[rank]})" for rank in ranks[:_NAMED]]
        return ", ".join(shown) + _rest(ranks)

    def _places(self, ranks: Sequence[int]) -> str:
        shown = [f"rank {rank} in {self._heartbeats[rank].where}" for rank in ranks[:_NAMED]]
        return ", ".join(shown) + _rest(ranks)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, ranks[:_NAMED]))}{_rest(ranks)}"


def _rest(ranks: Sequence[int]) -> str:
    return f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""


def _wait(ranks: Sequence[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"
