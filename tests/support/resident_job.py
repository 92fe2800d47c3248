"""The job of a resident world, as a session of pytest sees it: start, calls, end."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.cluster.identity import JOB_DIR
from paceline.comm.node_memory import PREFIX
from paceline.launch.job import Job
from paceline.launch.job_dir import shared_memory
from paceline.launch.mpirun import find_mpirun, read_machine
from paceline.launch.mpirun_command import render_command
from support import resident
from support.ranks import clean_environment

RANKS = 4
START_S = 90
"""How long mpirun may take until all ranks are there."""
LIMIT_S = 100
"""How long a call may take: less than a test, so that the job can say where it hangs."""
END_S = 90
"""How long the ranks may take to leave."""
_GRACE_S = 2
"""How long the other ranks may take to fail, too, after one has."""


class ResidentJob:
    """A world of 4 ranks that carries out calls: `job(3, "module:function", argument)`.

    The first ranks form a world of the size asked for and call `function(world, argument)`. It is
    started by the first call, and anew after a call that failed.
    """

    def __init__(self) -> None:
        self.starts = 0
        self.printed: list[str] = []
        """What each rank printed in the last call."""
        self.pids: list[int] = []
        self._said = ""
        self._open: contextlib.ExitStack | None = None

    def __call__(self, ranks: int, function: str, *arguments: Any, limit_s: float = LIMIT_S) -> Any:
        """What the function returns on rank 0."""
        return self.on_all(ranks, function, *arguments, limit_s=limit_s)[0]

    def on_all(
        self, ranks: int, function: str, *arguments: Any, limit_s: float = LIMIT_S
    ) -> list[Any]:
        """What the function returns on each rank."""
        if self._open is None:
            self._start()
        before = [path.stat().st_size for path in self._outputs]
        call = {"ranks": ranks, "function": function, "arguments": arguments}
        try:
            for line in self._lines:
                line.sendall(json.dumps(call, default=str).encode() + b"\n")
            answers = self._hear(ranks, time.monotonic() + limit_s)
        except BaseException as error:
            self._dump_stacks()
            self._note_printed(before)
            self._kill()
            if isinstance(error, TimeoutError | OSError):
                what = f"{function} on {ranks} ranks: {error or type(error).__name__}"
                raise AssertionError(f"{what}\n{self._describe_printed()}") from None
            raise
        self._note_printed(before)
        errors = {rank: a["error"] for rank, a in answers.items() if "error" in a}
        if errors:
            self._kill()
            text = "\n".join(f"rank {rank}: {error}" for rank, error in errors.items())
            raise AssertionError(f"{function} on {ranks} ranks\n{text}\n{self._describe_printed()}")
        return [answers[rank]["value"] for rank in range(ranks)]

    def close(self) -> None:
        """Let the ranks leave: all must end well, and leave nothing in shared memory."""
        if self._open is None:
            return
        with self._end():
            for line in self._lines:
                line.close()
            try:
                code = self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._dump_stacks()
                self._note_printed([0] * RANKS)
                raise AssertionError(
                    f"the resident world did not end\n{self._describe_printed()}"
                ) from None
            self._note_printed([0] * RANKS)
            assert code == 0, f"exit code {code}\n{self._describe_printed()}"
            left = [path.name for path in self._shared.rglob("*") if path.is_file()]
            left = [name for name in left if name.startswith((PREFIX, "sm_segment", "vader"))]
            assert not left, f"left in shared memory: {left}"

    def _start(self) -> None:
        self.starts += 1
        self._open = contextlib.ExitStack()
        self._lines: list[socket.socket] = []
        self.pids = []
        try:
            # Not in pytest's own folder: the name of a socket may have 107 letters at most.
            self._folder = Path(tempfile.mkdtemp(prefix="resident-"))
            self._open.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._outputs = [self._folder / f"output-{rank}" for rank in range(RANKS)]
            listening = self._open.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(str(self._folder / "socket"))
            listening.listen(RANKS)
            self._process = self._start_mpirun()
            self._open.callback(self._end_processes)
            self._lines = self._meet(listening)
        except BaseException:
            self._kill()
            raise

    def _start_mpirun(self) -> subprocess.Popen[bytes]:
        assert self._open is not None
        words = (sys.executable, resident.__file__, self._folder / "socket", self._folder)
        job = Job(RANKS, 1, tuple(map(str, words)))
        argv, extra = render_command(job, find_mpirun(), read_machine())
        place = self._open.enter_context(shared_memory(find_mpirun()))
        self._shared = Path(place[JOB_DIR])
        with (self._folder / "mpirun").open("wb") as output:
            return subprocess.Popen(
                argv,
                env=clean_environment(**place, **extra),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for pytest, which then ends it
            )

    def _meet(self, listening: socket.socket) -> list[socket.socket]:
        """A connection to each rank, in order."""
        assert self._open is not None
        found: dict[int, tuple[socket.socket, int]] = {}
        listening.settimeout(1)
        end = time.monotonic() + START_S
        while len(found) < RANKS:
            if self._process.poll() is not None or time.monotonic() > end:
                said = (self._folder / "mpirun").read_text(errors="replace")
                raise AssertionError(f"the resident world did not start\n{said}")
            with contextlib.suppress(TimeoutError):
                line = self._open.enter_context(listening.accept()[0])
                line.settimeout(START_S)
                hello = json.loads(_read_line(line))
                found[hello["rank"]] = (line, hello["pid"])
        self.pids = [found[rank][1] for rank in range(RANKS)]
        return [found[rank][0] for rank in range(RANKS)]

    def _hear(self, ranks: int, end: float) -> dict[int, dict[str, Any]]:
        """The answers of the ranks; when one has failed, the others may not come to answer."""
        answers: dict[int, dict[str, Any]] = {}
        with selectors.DefaultSelector() as waiting:
            for rank in range(RANKS):
                waiting.register(self._lines[rank], selectors.EVENT_READ, rank)
            while len(answers) < ranks:
                failed = any("error" in answer for answer in answers.values())
                ready = waiting.select(max(end - time.monotonic(), 0))
                ended = []
                for key, _ in ready:
                    rank, line = key.data, _read_line(self._lines[key.data])
                    waiting.unregister(key.fileobj)
                    answers[rank] = json.loads(line or '{"error": "has ended"}')
                    ended += [] if line else [rank]
                if ended and not failed:
                    raise ConnectionError(f"ranks {ended} have ended")
                if any("error" in answer for answer in answers.values()):
                    end = min(end, time.monotonic() + _GRACE_S)
                if not ready:
                    if failed:
                        return answers
                    missing = [rank for rank in range(ranks) if rank not in answers]
                    raise TimeoutError(f"no answer from ranks {missing} within the time limit")
        return answers

    def _dump_stacks(self) -> None:
        """Let each rank print where it is."""
        sizes = [path.stat().st_size for path in self._outputs]
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, resident.WHERE)
        end = time.monotonic() + _GRACE_S
        while time.monotonic() < end and any(
            path.stat().st_size == size for path, size in zip(self._outputs, sizes, strict=True)
        ):
            time.sleep(0.05)

    def _note_printed(self, before: list[int]) -> None:
        self.printed = [
            path.read_bytes()[start:].decode(errors="replace")
            for path, start in zip(self._outputs, before, strict=True)
        ]
        self._said = (self._folder / "mpirun").read_text(errors="replace")

    def _describe_printed(self) -> str:
        said = {f"rank {rank}": text for rank, text in enumerate(self.printed)}
        said["mpirun"] = self._said
        return "\n".join(f"{who} printed:\n{text}" for who, text in said.items() if text)

    @contextlib.contextmanager
    def _end(self) -> Iterator[None]:
        opened, self._open = self._open, None
        assert opened is not None
        with opened:
            yield

    def _kill(self) -> None:
        with self._end():
            pass

    def _end_processes(self) -> None:
        """mpirun ends its ranks; what does not end is killed."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self._process.kill()
        self._process.wait()
        end = time.monotonic() + 10
        while (living := self.living()) and time.monotonic() < end:
            time.sleep(0.02)
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def living(self) -> list[int]:
        """The ranks that have not ended: a number alone might be somebody else's by now."""
        found = []
        for pid in self.pids:
            with contextlib.suppress(OSError):
                if bytes(self._folder) in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found


def _read_line(line: socket.socket) -> bytes:
    """A line, without its end; nothing if the other side has ended."""
    parts = []
    while not parts or not parts[-1].endswith(b"\n"):
        part = line.recv(1 << 16)
        if not part:
            return b""
        parts.append(part)
    return b"".join(parts).rstrip(b"\n")
