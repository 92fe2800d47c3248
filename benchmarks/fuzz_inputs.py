"""Feed Paceline damaged files and odd settings, and look for anything but a plain answer.

    python benchmarks/fuzz_inputs.py --seconds 120 --seed 7
    python benchmarks/fuzz_inputs.py --seed 7 --case 41        # one case again

A traceback, a hang, a signal or a nonsensical result is a finding: printed with how to repeat it,
and the exit code is 1. Cases run in a process of their own, one after the other; one that does not
end in time is killed with it.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LONGEST_S = 30.0
STARTING_S = 300.0
MEMORY_BYTES = 16 << 30
"""Of address space: a case that takes more fails, and the machine does not."""


def serve(pipe: Connection, seed: int, folder: Path) -> None:
    """Run the cases that are asked for: the answer is the outcome, and a traceback if it is bad."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("ignore")
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import torch
    from fuzz_cases import make_whole_files

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    whole = folder / "whole"
    if not whole.exists():
        whole.mkdir()
        make_whole_files(whole)
    pipe.send(("ready", ""))
    while (number := pipe.recv()) is not None:
        pipe.send(judge(seed, number, whole, folder / "case"))


def judge(seed: int, number: int, whole: Path, place: Path) -> tuple[str, str]:
    from fuzz_cases import run_case

    from paceline.errors import PacelineError

    try:
        run_case(seed, number, whole, place)
    except PacelineError as error:
        text = str(error)
        if len(text) > 3000 or "Traceback" in text:
            return "finding", f"a message that nobody reads: {text[:300]}"
        return "refused", ""
    except SystemExit as error:  # of argparse
        return ("refused", "") if error.code == 2 else ("finding", f"exit code {error.code}")
    except BaseException:
        return "finding", traceback.format_exc()
    return "accepted", ""


class Server:
    """The process in which cases run; a new one whenever it was lost."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._seed, self._folder = seed, folder
        self._process: Any = None

    def run(self, number: int) -> tuple[str, str]:
        """The outcome of a case, and what there is to say about it."""
        if self._process is None:
            self.start()
        self._pipe.send(number)
        answer = self._hear(LONGEST_S)
        if answer is not None:
            return answer
        code = self._process.exitcode
        self.close()
        return "finding", f"it took more than {LONGEST_S} s" if code is None else f"signal {-code}"

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def start(self) -> None:
        """Wait until it is ready."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, self._seed, self._folder))
        self._process.start()
        theirs.close()
        if self._hear(STARTING_S) is None:
            raise SystemExit("fuzz_inputs: the process that runs the cases does not start")

    def _hear(self, seconds: float) -> tuple[str, str] | None:
        try:
            return self._pipe.recv() if self._pipe.poll(seconds) else None
        except EOFError:
            self._process.join(5)
            return None


def numbers(only: int | None, seconds: float, most: int) -> Iterator[int]:
    """Of the cases, until the time is over."""
    if only is not None:
        yield only
        return
    end = time.monotonic() + seconds
    for number in range(most):
        if time.monotonic() >= end:
            return
        yield number


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10**9, help="end after so many")
    parser.add_argument("--case", type=int, help="only the case of this number")
    args = parser.parse_args()
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="paceline-fuzz-") as folder:
        server = Server(args.seed, Path(folder))
        try:
            server.start()
            for number in numbers(args.case, args.seconds, args.cases):
                outcome, said = server.run(number)
                outcomes[outcome] += 1
                if outcome == "finding":
                    print(f"FINDING in case {number}: {said.strip()}")
                    print(f"  again: python {sys.argv[0]} --seed {args.seed} --case {number}")
                    sys.stdout.flush()
        finally:
            server.close()
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    print(f"seed {args.seed}: {outcomes.total()} cases: {told}")
    return 1 if outcomes["finding"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
