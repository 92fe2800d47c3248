"""Every rule meets every fault, under real MPI: a run bears it, or ends and says why.

In the core every rule and every fault comes once; the grid of all of them is slow.
"""

import contextlib
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.launching import KIND
from support.ranks import TESTS, clean_environment

from paceline.checkpoint.store import Store
from paceline.testing import Fault

pytestmark = [
    pytest.mark.timeout(300),  # the first test waits for a job that may have others beside it
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc on this system"),
]
HYDRA = KIND in ("mpich", "intel")

RULES = {
    "bsp": {"name": "bsp"},
    "bsp-unshared": {"name": "bsp"},
    "average": {"name": "average", "every": 3},
    "diloco": {"name": "diloco", "every": 3},
    "easgd": {"name": "easgd", "every": 2},
    "easgd-server": {"name": "easgd", "every": 2},
    "downpour": {"name": "downpour"},
    "gossip": {"name": "gossip", "probability": 1},
}
EXCHANGE = {"bsp-unshared": {"share": False}, "easgd-server": {"servers": 1}}
"""How ranks exchange, where that is not the usual way."""
IN_LOCKSTEP = ("bsp", "bsp-unshared", "average", "diloco")
STALLED = ("sigstop", "drop")
"""Faults whose end is told by the clock: the run gives up after a stall."""
HANG_S = 120
AT_ONCE = 2
"""Jobs at a time: most of a stall is waiting."""
LEAST_ACCURACY = 0.85
"""Without a fault it is 0.88, whatever the rule."""

KILLED = r"(rank {} \(\S+\)|a rank \(.*\))" if HYDRA else r"rank {} \(\S+\)"
STALL = r"WorldError on rank {} \(\S+\): nothing has moved for \d+ s at step \d+: "
MISSING = r"rank {}(, 2 wait| waits) for rank {} \(\S+\), "
APART = r"all ranks wait for each other \(rank 0 in \S+ \S+, rank 1 in \S+ \S+"


BEARABLE = {
    "nan": "nan:rank=1,step=6",
    "disk-full": "disk-full:rank=1,step=9",
    # It comes last: asynchronous workers may be done meanwhile.
    "delay": "delay:rank=1,step=12",
}
"""Faults that a run bears; one run, all of them."""


@dataclass(frozen=True)
class Job:
    """A run in which faults strike."""

    rule: str
    faults: tuple[str, ...]
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A fault under a rule, and what is to come of it."""

    rule: str
    fault: str
    says: str
    """A pattern: of a line of stderr, and where the run ends, of the one that says why."""
    code: int = 0
    """Of the launcher."""
    more: tuple[str, ...] = ()

    def __str__(self) -> str:
        fault = Fault.parse(self.fault)
        code = f"-with-{fault.code}" if fault.kind == "exit" else ""
        return f"{self.rule}-{fault.kind}{code}-on-rank-{fault.rank}" + "".join(self.more)

    @property
    def job(self) -> Job:
        """Where it is seen: faults that a run bears strike one run, one after the other."""
        bearable = tuple(BEARABLE.values())
        return Job(self.rule, bearable if self.fault in bearable else (self.fault,), self.more)


def borne(rule: str) -> list[Case]:
    """Faults that a run bears, on rank 1."""
    # Asynchronous workers wait at the end alone: the run may be over before the watch tells that
    # it moves again.
    busy = MISSING.format(0, 1) + r"busy in told.py:\d+ \w+"
    busy += r"(.|\n)*moving again" if rule in IN_LOCKSTEP else ""
    rejected = r"\[rank 1\] warning: the loss is nan at step 6 on rank 1, .*: rejected"
    full = r"\[rank 1\] warning: the checkpoint \S+ cannot be written: File too large"
    said = {"nan": rejected, "disk-full": full, "delay": busy}
    return [Case(rule, fault, said[kind]) for kind, fault in BEARABLE.items()]


def fatal(rule: str, rank: int) -> list[Case]:
    """Faults that end it."""
    judge = 1 if rank == 0 else 0  # who is stopped cannot say it
    silent = MISSING.format(1 - rank, rank) + r"busy in inject.py:\d+ _fall_silent"
    # A server is told of every second step by a message; a peer, if the push before has left.
    dropped = {"easgd-server": APART, "gossip": f"({APART}|{silent})"}.get(rule, silent)
    stopped = STALL.format(judge) + MISSING.format(judge, rank) + "which has not been heard of"
    at = rf"on rank {rank} \(\S+\) at step 12; all ranks were ended$"
    where = f"rank={rank},step=12"
    return [
        Case(rule, f"exception:{where}", f"^paceline: RuntimeError {at}", 1),
        Case(rule, f"exit:{where}", f"^paceline: exit with 0 {at}", 1),
        Case(rule, f"sigkill:{where}", KILLED.format(rank) + " was killed by signal 9", 137),
        Case(rule, f"sigstop:{where}", stopped, 1),
        Case(rule, f"drop:{where}", STALL.format(0) + dropped, 1),
    ]


BORNE = [case for rule in RULES for case in borne(rule)]
FATAL = [case for rule in RULES for case in fatal(rule, rank=1)]
LEADER = [
    *fatal("average", rank=0),
    Case(
        "average",
        "exit:rank=0,step=12,code=3",
        r"^paceline: exit with 3 on rank 0 \(\S+\) at step 12; all ranks were ended$",
        code=3,
    ),
    Case(
        "average",
        "disk-full:rank=0,step=12",
        r"OutputError on rank 0 \(\S+\): the model cannot be saved in .*: .*File too large",
        code=1,
    ),
]
KNOWN = Case(
    "bsp",
    "sigkill:rank=1,step=25",
    KILLED.format(1) + " was killed by .* at step 25; all ranks were ended",
    code=137,
    more=("--known",),
)
IN_CORE = {
    *("bsp-nan-on-rank-1", "bsp-disk-full-on-rank-1", "bsp-delay-on-rank-1"),
    *("easgd-nan-on-rank-1", "easgd-disk-full-on-rank-1", "easgd-delay-on-rank-1"),
    "bsp-unshared-exception-on-rank-1",
    "average-exit-with-3-on-rank-0",
    "diloco-sigkill-on-rank-1",
    "easgd-server-drop-on-rank-1",
    "downpour-sigstop-on-rank-1",
    "gossip-exit-with-0-on-rank-1",
}


def grid(*cases: Case) -> list[Any]:
    """The cases as parameters, most of them slow."""
    slow = pytest.mark.slow
    return [
        pytest.param(case, id=str(case), marks=() if str(case) in IN_CORE else slow)
        for case in cases
    ]


@dataclass(frozen=True)
class Outcome:
    """How a job has ended."""

    code: int
    out: str
    err: str
    mapped: set[str]
    """What its ranks mapped of the shared memory."""
    left: list[str]
    """Processes and memory that should have gone with it."""
    checkpoints: Store

    @property
    def last_words(self) -> str:
        """The one message that says why it ended."""
        ending = re.compile(r"^\w+Error on rank|all ranks were ended$")
        said = [line for line in self.err.splitlines() if ending.search(line)]
        assert len(said) == 1, self.err
        return said[0]

    @property
    def accuracy(self) -> float:
        return float(re.search(r"ACCURACY ([\d.]+)", self.out)[1])


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """`outcomes(case)`: of the cases that were selected, which run a few at a time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = {}
        for item in request.session.items:
            if item.path == request.path:
                job = item.callspec.params["case"].job
                if job not in found:
                    found[job] = pool.submit(run, job, tmp_path_factory.mktemp("job"))
        yield lambda case: found[case.job].result()
        pool.shutdown(cancel_futures=True)


def run(job: Job, folder: Path) -> Outcome:
    """Train by that rule while those faults strike."""
    exchange = EXCHANGE.get(job.rule, {})
    ranks = 2 + exchange.get("servers", 0)
    program = [str(TESTS / "mpi" / "programs" / "faulty.py"), str(folder), *job.more]
    program += ["--rule", json.dumps(RULES[job.rule]), "--exchange", json.dumps(exchange)]
    program += [word for fault in job.faults for word in ("--fault", fault)]
    if any(Fault.parse(fault).kind in STALLED for fault in job.faults):
        program += ["--stall-timeout-s", "3"]
    launcher = subprocess.Popen(
        [str(Path(sys.executable).parent / "paceline"), "run", "-n", str(ranks), "--", *program],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    try:
        out, err = launcher.communicate(timeout=HANG_S)
    except subprocess.TimeoutExpired:
        launcher.kill()  # its reaper ends the ranks
        out, err = launcher.communicate(timeout=30)
        pytest.fail(f"still ran after {HANG_S} s:\n{out}{err}")
    assert (folder / "struck").exists(), out + err
    mapped = {line for file in folder.glob("mapped-*") for line in file.read_text().splitlines()}
    return Outcome(
        launcher.returncode,
        out,
        err,
        mapped,
        [*left_of(launcher.pid), *(path for path in mapped if Path(path).exists())],
        Store(folder / "run" / "checkpoints"),
    )


def left_of(launcher: int) -> list[str]:
    """Processes and memory of its job that do not go: the kernel may need a moment for some."""
    end = time.monotonic() + 30
    while (found := _left_of(launcher)) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def _left_of(launcher: int) -> list[str]:
    found = [str(path) for path in Path("/dev/shm").glob(f"paceline-{launcher}-*")]
    mark = f"PACELINE_JOB_DIR=/dev/shm/paceline-{launcher}-".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes():
                found.append(process.name)
    return found


def check_what_is_left(done: Outcome) -> None:
    """Nothing but checkpoints that are sound."""
    assert done.left == []
    assert done.mapped or KIND != "openmpi", "ranks of a node talk by way of shared memory"
    for name in done.checkpoints.names():
        done.checkpoints.check(name)


@pytest.mark.parametrize("case", grid(*BORNE))
def test_a_run_bears_it(outcomes, case):
    done = outcomes(case)
    assert done.code == 0, done.err
    assert done.accuracy >= LEAST_ACCURACY
    assert re.search(case.says, done.err)
    check_what_is_left(done)


@pytest.mark.parametrize("case", grid(*FATAL, *LEADER, KNOWN))
def test_a_run_ends_and_says_why(outcomes, case):
    done = outcomes(case)
    assert done.code == case.code, done.err
    assert re.search(case.says, done.last_words)
    check_what_is_left(done)
