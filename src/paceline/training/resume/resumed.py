"""A resumed run: which checkpoint it continues from, and what of it each rank gets."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from paceline.checkpoint.saver import number_of
from paceline.checkpoint.store import REMEDY, Store, newest_valid
from paceline.cluster.identity import NODE_STATE
from paceline.comm import World
from paceline.comm.rank0 import on_rank0
from paceline.core.trees import Tree
from paceline.core.user_code import describe_failure
from paceline.core.vectors import Layout, Vector, at_most, tell_apart
from paceline.errors import CheckpointError, PacelineError
from paceline.sync.saved import SavedCentre, unpack
from paceline.training.resume.continuation import Continuation, shares_of
from paceline.training.resume.part_checks import check_common, check_facts, check_own, check_server

T = TypeVar("T")

FOLDER = "checkpoints"
_log = logging.getLogger("paceline.training")
_WRONG_VALUES = (
    LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError
)  # fmt: skip
"""What values of another kind than expected lead to."""


class Resumed(Continuation):
    """A checkpoint as this rank of the resumed run sees it."""

    def __init__(self, store: Store, name: str, run_dir: Path, world: World) -> None:
        self._store, self._name, self._world = store, name, world
        self.run_dir = run_dir
        with self.blamed():
            self.facts = store.facts(name)
            check_facts(self.facts)
            self.common = store.read(name, "common")
            check_common(self.common, self.facts)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Inside, errors about unusual contents name the checkpoint as damaged."""
        try:
            yield
        except PacelineError:
            raise
        except _WRONG_VALUES as error:
            plain = type(error) is ValueError
            cause = str(error) if plain else describe_failure(error)
            place = self._store.folder / self._name
            raise CheckpointError(f"the checkpoint {place} is damaged: {cause}{REMEDY}") from error

    def check_model(self, layout: Layout) -> None:
        """Refuse to go on with another model, and say where it differs."""
        if self.facts.get("model") == layout.fingerprint():
            return
        with self.blamed():
            was = Layout.of((name, shape, kind) for name, shape, kind, _ in self.common["layout"])
        found = at_most(tell_apart(was, "the run", layout, "the model"))
        raise CheckpointError(
            f"the run in {self.run_dir} was of another model: {'; '.join(found)}. Name the model "
            "that it had, or start a new run"
        )

    @property
    def same_ranks(self) -> bool:
        """Whether there are as many as there were."""
        return bool(self.facts["ranks"] == self._world.size)

    def describe(self) -> str:
        """Where the run continues, for the user."""
        ranks = self.facts["ranks"]
        others = "" if self.same_ranks else f" (of {ranks} rank{'s' * (ranks > 1)})"
        in_memory = self._store.folder.parent != self.run_dir
        place = " from node memory" if in_memory else ""
        return f"resuming {self.run_dir}{place} after step {self.facts['step']}{others}"

    @cached_property
    def own(self) -> Tree:
        """What this rank had; if the number of ranks changed, what one of them had."""
        workers, rank = self.facts["workers"], self._world.rank
        had_part = self.same_ranks and rank in workers
        return self._read_rank(rank if had_part else workers[rank % len(workers)])

    def everybody(self, take: Callable[[Tree], T]) -> list[T]:
        """The same of every worker's part, in order."""
        return [take(self._read_rank(rank)) for rank in self.facts["workers"]]

    def _read_rank(self, rank: int) -> Tree:
        part = self._store.read(self._name, f"rank-{rank}")
        with self.blamed():
            check_own(f"rank-{rank}", part)
        return part

    def _read_server(self, rank: int) -> Tree:
        part = self._store.read(self._name, f"server-{rank}")
        with self.blamed():
            check_server(f"server-{rank}", part)
        return part

    @cached_property
    def centre(self) -> SavedCentre | None:
        """The centre, or the ledger of workers without one."""
        servers = self.facts["servers"]
        if not servers:
            return None
        with self.blamed():
            return self._join_centre([self._read_server(rank) for rank in servers])

    def _join_centre(self, parts: list[Tree]) -> SavedCentre:
        in_hand = self.everybody(lambda part: part["exchange"]["grants"])
        saved = unpack(parts, [number for numbers in in_hand for number in numbers])
        if saved.centre.size not in (0, self.common["parameters"].size):
            raise ValueError(
                f"the centre has {saved.centre.size} numbers, and the model "
                f"{self.common['parameters'].size}"
            )
        if not self.same_ranks:  # no worker will report what the old ones had not yet
            unreported = self.everybody(lambda part: part["exchange"])
            for name in ("samples", "loss", "without_loss"):
                saved.ledger[name] += sum(worker[name] for worker in unreported)
        return saved

    def _mean(self, total: Vector) -> Vector:
        weights = self.everybody(lambda part: part["exchange"]["weight"])
        for share, rank in zip(shares_of(weights), self.facts["workers"], strict=True):
            total += total.dtype.type(share) * self._read_rank(rank)["parameters"]
        return total


def find_resumed(resume: str | None, run_dir: Path | None, world: World) -> Resumed | None:
    """The checkpoint to resume from; None to start. All ranks call it together.

    With `auto` there need not be one.
    """
    if resume is None or run_dir is None:
        return None
    folders = [run_dir / FOLDER]
    if NODE_STATE in os.environ:
        folders.append(Path(os.environ[NODE_STATE]) / FOLDER)
    found = on_rank0(world, lambda: _find_newest(folders))
    if found is not None:
        return Resumed(Store(folders[found[0]]), found[1], run_dir, world)
    if resume != "auto":
        raise CheckpointError(
            f"{run_dir} holds no checkpoint to go on from; set checkpoint_every in the next run"
        )
    return None


def _find_newest(folders: Sequence[Path]) -> tuple[int, str] | None:
    """In which folder the newest whole checkpoint is, and its name."""
    names = [newest_valid(Store(folder), _log.warning) for folder in folders]
    found = [(number_of(name), at, name) for at, name in enumerate(names) if name is not None]
    return max(found)[1:] if found else None


def check_identity(facts: Tree, expected: Tree, run_dir: Path) -> None:
    """Refuse to go on with another model, rule or data."""
    found = [
        f"{name} was {facts.get(name)}, is {value}"
        for name, value in expected.items()
        if facts.get(name) != value
    ]
    if found:
        raise CheckpointError(
            f"the run in {run_dir} cannot go on with these settings: {'; '.join(found)}. Restore "
            "them, or start a new run"
        )
