"""Telling a stall from work: what each rank says of itself goes in, a verdict comes out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

State = Literal["waiting", "busy", "left"]

PULSE_BYTES = 1024
"""Room for a pulse on its way; `WHERE_LENGTH` characters fit into it, whatever they are."""
WHERE_LENGTH = 100

LEFT_S = 5.0
"""How long ranks wait, while another has ended, before they are told that it will not come."""

SILENT_S = 10.0
"""How long rank 0, which is about to end, waits for news of a rank that says nothing."""

_NAMED = 6
"""Ranks that a message names; of the others it gives the number."""


@dataclass(frozen=True)
class Heartbeat:
    """What a rank says of itself.

    `progress` grows whenever the rank gets on, and `since_s` is how long ago it last did. A rank
    outside of any section gets on when it enters one. `waiting_s` is how long it has waited since.
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


def encode(pulse: Heartbeat, room: npt.NDArray[np.uint8]) -> None:
    """Write a pulse into a buffer of `PULSE_BYTES`."""
    facts = asdict(pulse) | {"where": pulse.where[:WHERE_LENGTH]}
    text = json.dumps(facts, ensure_ascii=False).encode(errors="replace")
    room[:] = ord(" ")
    room[: len(text)] = np.frombuffer(text, np.uint8)


def decode(room: npt.NDArray[np.uint8]) -> Heartbeat:
    """The pulse in a buffer."""
    return Heartbeat(**json.loads(room.tobytes()))


@dataclass(frozen=True)
class Finding:
    """Something to say on stderr, or, with `end`, the reason to end all ranks."""

    text: str
    end: bool = False


class StallDetector:
    """Knows the last pulse of every rank, and says when nothing moves any more.

    A stall: a rank in a section waits, for as long as its section allows, and meanwhile no rank
    has got on. Ranks that are slow but move, and ranks that wait for one that moves, are none.
    Time is handed in, in seconds from any beginning.
    """

    def __init__(self, nodes: Sequence[str], now_s: float) -> None:
        self._nodes = tuple(nodes)
        self._pulses = [Heartbeat()] * len(nodes)
        self._heard_s = [now_s] * len(nodes)
        self._warned_s: float | None = None
        self._stalled_s = 0.0

    def hear(self, rank: int, pulse: Heartbeat, now_s: float) -> None:
        """Take down a rank's pulse; of one that has left, the first that says so."""
        if self._pulses[rank].state == "left":
            return
        self._pulses[rank], self._heard_s[rank] = pulse, now_s

    def look(self, now_s: float) -> Finding | None:
        """What is to be said now; each warning comes once per stall."""
        return self._judge_left(now_s) or self._judge_stall(now_s)

    def is_last(self, rank: int, now_s: float) -> bool:
        """Whether every other rank has left, or says nothing any more."""
        return all(
            pulse.state == "left" or now_s - heard_s >= SILENT_S
            for other, (pulse, heard_s) in enumerate(zip(self._pulses, self._heard_s, strict=True))
            if other != rank
        )

    @property
    def has_warned(self) -> bool:
        """Whether a stall was told whose end was not."""
        return self._warned_s is not None

    def has_left(self, rank: int) -> bool:
        """Whether this rank has said that it ends."""
        return self._pulses[rank].state == "left"

    def silence_s(self, rank: int, now_s: float) -> float:
        """How long ago this rank was last heard of."""
        return now_s - self._heard_s[rank]

    def shortest_warning_s(self) -> float:
        """The least time after which some rank wants to be warned."""
        wanted = (pulse.warning_s for pulse in self._pulses if pulse.warning_s is not None)
        return min(wanted, default=float("inf"))

    def known(self) -> dict[str, dict[str, object]]:
        """What is known of each rank, for who looks at the job from outside."""
        return {
            str(rank): {
                "node": node,
                "step": pulse.step,
                "state": pulse.state,
                "where": pulse.where,
            }
            for rank, (node, pulse) in enumerate(zip(self._nodes, self._pulses, strict=True))
        }

    def _judge_left(self, now_s: float) -> Finding | None:
        """Whether ranks wait for one that has ended, and for nobody else.

        A rank that is busy, or says nothing, may be the one that the others wait for. And what was
        said before the last one ended does not count: it may have ended what they waited for.
        """
        left, stay = self._in_state("left"), self._ranks_that_stay()
        if not left or not stay:
            return None
        ended_s = max(self._heard_s[rank] for rank in left)
        for rank in stay:
            pulse = self._pulses[rank]
            late = pulse.waiting_s >= LEFT_S and self._heard_s[rank] >= ended_s + LEFT_S
            if pulse.state != "waiting" or not late:
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
        waiting = [self._pulses[rank] for rank in self._in_state("waiting")]
        stalls = [(min(still_s, pulse.waiting_s), pulse) for pulse in waiting]
        late = [(s, p) for s, p in stalls if p.warning_s is not None and s >= p.warning_s]
        if not late:
            return None
        self._stalled_s = max(s for s, _ in late)
        if any(p.timeout_s is not None and s >= p.timeout_s for s, p in late):
            facts, remedy = self._describe(now_s)
            return Finding(f"{facts}; ended (stall_timeout_s). {remedy}", end=True)
        if self._warned_s is not None:
            return None
        self._warned_s = self._stalled_s
        return Finding(self._describe(now_s)[0])

    def _ranks_that_stay(self) -> list[int]:
        return [rank for rank, pulse in enumerate(self._pulses) if pulse.state != "left"]

    def _in_state(self, state: State) -> list[int]:
        return [rank for rank, pulse in enumerate(self._pulses) if pulse.state == state]

    def _since_s(self, rank: int, now_s: float) -> float:
        return self._pulses[rank].since_s + self.silence_s(rank, now_s)

    def _is_silent(self, rank: int, now_s: float) -> bool:
        # Less than all of the stall: its last pulse may have come a moment after it began.
        return self.silence_s(rank, now_s) >= self._stalled_s / 2

    def _describe(self, now_s: float) -> tuple[str, str]:
        """The facts of a stall, and what to do."""
        steps = [pulse.step for pulse in self._pulses if pulse.step is not None]
        at_step = f" at step {max(steps)}" if steps else ""
        head = f"nothing has moved for {self._stalled_s:.0f} s{at_step}: "
        silent = [rank for rank in self._ranks_that_stay() if self._is_silent(rank, now_s)]
        waiting = [rank for rank in self._in_state("waiting") if rank not in silent]
        missing = [rank for rank in range(len(self._pulses)) if rank not in waiting]
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
        pulse, name = self._pulses[rank], self._named([rank])
        if silent:
            return (
                f"{name}, which has not been heard of for {self.silence_s(rank, now_s):.0f} s "
                "(stopped? is its node up?)"
            )
        if pulse.state == "left":
            return f"{name}, which has ended"
        return f"{name}, busy in {pulse.where}"

    def _named(self, ranks: Sequence[int]) -> str:
        shown = [f"rank {rank} ({self._nodes[rank]})" for rank in ranks[:_NAMED]]
        return ", ".join(shown) + _rest(ranks)

    def _places(self, ranks: Sequence[int]) -> str:
        shown = [f"rank {rank} in {self._pulses[rank].where}" for rank in ranks[:_NAMED]]
        return ", ".join(shown) + _rest(ranks)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, ranks[:_NAMED]))}{_rest(ranks)}"


def _rest(ranks: Sequence[int]) -> str:
    return f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""


def _wait(ranks: Sequence[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"
