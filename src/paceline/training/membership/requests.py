"""Requests to a running job to let ranks join or leave, and its answers.

They are files in a folder of the run directory. Who may ask is decided by the owner of the run: the
folder is theirs alone, and a request must have the token that the job has put there.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from paceline.core.private import make_folder, opened_folder, read_text, remove_folder, write_text
from paceline.errors import ConfigError

FOLDER = "membership"
"""In the run directory, while an elastic run is under way."""
KINDS = ("join", "leave", "scale")
_TOKEN, _TARGET, _DESERTED = "token", "target", "deserted"
_REQUEST, _ANSWER = ".request", ".answer"
_LONGEST = 100_000
"""Characters of a request."""


@dataclass(frozen=True)
class MembershipRequest:
    """What is asked for."""

    kind: str
    """join, leave or scale."""
    count: int = 0
    """How many are to join, or how many there are to be."""
    hosts: tuple[str, ...] = ()
    """Where: of those that join one each, of those that leave all that are there."""
    ranks: tuple[int, ...] = ()
    """Who is to leave."""


class Answer(NamedTuple):
    """What the job says to it."""

    text: str
    is_final: bool = False
    is_refused: bool = False


class Desk:
    """Where a job takes requests."""

    def __init__(self, run_dir: Path, goes_on: bool = False) -> None:
        """`goes_on`: take over from a rank that was lost; else nothing of an older job counts."""
        self._folder = run_dir / FOLDER
        if not goes_on:
            remove_folder(self._folder)
        make_folder(self._folder)
        with opened_folder(self._folder) as folder:
            try:
                self._token = read_text(_TOKEN, folder)
            except OSError:
                self._token = secrets.token_hex(16)
                write_text(_TOKEN, self._token, folder)
        self._taken: set[str] = set()

    def take(self) -> list[tuple[str, MembershipRequest]]:
        """New requests, by their names, the oldest first; those without the token do not count."""
        found = []
        with suppress(OSError), opened_folder(self._folder) as folder:
            for name in sorted(os.listdir(folder)):  # noqa: PTH208
                key = name.removesuffix(_REQUEST)
                if key != name and key not in self._taken:
                    self._taken.add(key)
                    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
                        found.append((key, self._read(name, folder)))
        return found

    def _read(self, name: str, folder: int) -> MembershipRequest:
        text = read_text(name, folder)
        values = json.loads(text) if len(text) <= _LONGEST else {}
        if not secrets.compare_digest(str(values.pop("token")), self._token):
            raise ValueError("another token")
        hosts, ranks = (tuple(values.pop(name)) for name in ("hosts", "ranks"))
        return MembershipRequest(**values, hosts=hosts, ranks=ranks)

    @property
    def target(self) -> int | None:
        """How many ranks there are to be; whoever leads the job knows it from the last one."""
        text = self._recall(_TARGET)
        return int(text) if text else None

    @target.setter
    def target(self, ranks: int) -> None:
        self._remember(_TARGET, str(ranks))

    @property
    def deserted(self) -> list[str]:
        """Hosts that all ranks have left; the same."""
        return self._recall(_DESERTED).split()

    @deserted.setter
    def deserted(self, hosts: Iterable[str]) -> None:
        self._remember(_DESERTED, "\n".join(hosts))

    def _recall(self, name: str) -> str:
        with suppress(OSError), opened_folder(self._folder) as folder:
            return read_text(name, folder)
        return ""

    def _remember(self, name: str, text: str) -> None:
        with suppress(OSError), opened_folder(self._folder) as folder:
            write_text(name, text, folder)

    def answer(self, key: str, answer: Answer) -> None:
        """Say how far it is; the request is done with a final answer."""
        with suppress(OSError), opened_folder(self._folder) as folder:
            write_text(key + _ANSWER, json.dumps(answer), folder)
            if answer.is_final:
                os.unlink(key + _REQUEST, dir_fd=folder)

    def close(self) -> None:
        """The run is over."""
        remove_folder(self._folder)


class Inquiry:
    """A request, as whoever makes it sees it."""

    def __init__(self, run_dir: Path, request: MembershipRequest) -> None:
        self._folder = run_dir / FOLDER
        if not run_dir.is_dir():
            raise ConfigError(f"{run_dir} is not a directory; name the directory of a run")
        # Names sort in the order in which they were made.
        self._key = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
        try:
            with opened_folder(self._folder) as folder:
                token = read_text(_TOKEN, folder)
                text = json.dumps({"token": token, **asdict(request)})
                write_text(self._key + _REQUEST, text, folder)
        except FileNotFoundError:
            raise ConfigError(
                f"{run_dir} is not the directory of an elastic run that is under way; start one "
                "with --elastic"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"the job of {run_dir} cannot be asked: {error.strerror or error}"
            ) from None

    def answer(self) -> Answer | None:
        """What the job has said so far; None: nothing yet. The run being over is an answer."""
        try:
            with opened_folder(self._folder) as folder:
                return Answer(*json.loads(read_text(self._key + _ANSWER, folder)))
        except FileNotFoundError:
            if self._folder.is_dir():
                return None
            return Answer("the run has ended", is_final=True, is_refused=True)
        except (OSError, ValueError, TypeError):
            return None

    def withdraw(self) -> None:
        """Leave nothing behind."""
        with suppress(OSError), opened_folder(self._folder) as folder:
            for suffix in (_REQUEST, _ANSWER):
                with suppress(OSError):
                    os.unlink(self._key + suffix, dir_fd=folder)
