"""One rank of scripts/torch-own-tests: runs tests of torch's distributed_test.py, one by one.

    mpirun -n 4 python torch_own_tests_rank.py BACKEND FOLDER TEST...

Each rank appends what happens to FOLDER/rank<N>.jsonl: a line when a test begins and one when it is
over. Every test gets a process group of its own. A test that hangs ends all ranks;
scripts/torch-own-tests starts new ones for the rest.
"""

import faulthandler
import functools
import json
import os
import sys
import tempfile
import threading
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

BACKEND, FOLDER, TESTS = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
LIMIT_S = float(os.environ.get("TORCH_OWN_TESTS_LIMIT_S", "240"))
"""How long one test may take."""
BARRIER_S = 60.0
"""How long the ranks of a test may wait for each other by files; torch allows 10 s."""
MPI_ONLY = "Only MPI supports"
"""How torch marks its tests of all_to_all, which are run here on both backends."""
NAMED = {"test_get_backend", "test_Backend_enum_class"}
"""Tests of the backend's name itself."""

# Several tests make groups anew by it, and torch runs some of them with files alone.
os.environ["INIT_METHOD"] = f"file://{FOLDER}/made_anew"

import torch.distributed as dist  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402
from torch.testing._internal.common_utils import set_rng_seed  # noqa: E402

import paceline.torch_backend  # noqa: E402
from paceline.torch_backend.joined import join  # noqa: E402


def any_world(test: Any) -> Any:
    """In the place of skip_if_small_worldsize, which wants 8 ranks; the tests themselves want 3."""
    return test


common_distributed.skip_if_small_worldsize = any_world

from torch.testing._internal.distributed import distributed_test as torch_tests  # noqa: E402


class Ranks(torch_tests.TestDistBackend, torch_tests.DistributedTest._DistTestBase):
    """torch's tests, in processes that mpirun has started."""


def is_ours(backend: Any) -> bool:
    """Whether a test that asks for this backend gets ours."""
    return BACKEND == "mpi4py" and str(backend).lower() == "gloo"


def with_our_backend(function: Any) -> Any:
    """init_process_group or new_group, where gloo means the backend that is tried."""

    @functools.wraps(function)
    def call(*arguments: Any, **settings: Any) -> Any:
        if is_ours(settings.get("backend")):
            settings["backend"] = BACKEND
        return function(*arguments, **settings)

    return call


def run(name: str, rank: int) -> tuple[str, str]:
    """Outcome and reason of one test on this rank."""
    method = getattr(Ranks, name)
    reason = getattr(method, "__unittest_skip_why__", "")
    if getattr(method, "__unittest_skip__", False) and not reason.startswith(MPI_ONLY):
        return "skipped", reason
    test = make_test(name, rank)
    try:
        getattr(test, name)()
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as end:
        return of_exit_code(end.code)
    except Exception as error:
        traceback.print_exc()
        return "failed", f"{type(error).__name__}: {error}".partition("\n\nTo execute this")[0]
    return "passed", ""


def make_test(name: str, rank: int) -> Ranks:
    """The test, and the group in which it runs."""
    test = Ranks(name)
    test.rank, test.file_name = rank, f"{FOLDER}/{name}.store"
    torch_tests.BACKEND = BACKEND if name in NAMED else os.environ["BACKEND"]
    seconds = torch_tests.CUSTOM_PG_TIMEOUT.get(name, torch_tests.default_pg_timeout)
    dist.init_process_group(
        BACKEND,
        init_method=f"file://{test.file_name}",
        world_size=int(os.environ["WORLD_SIZE"]),
        rank=rank,
        timeout=timedelta(seconds=seconds),
    )
    set_rng_seed()
    return test


def of_exit_code(code: Any) -> tuple[str, str]:
    """torch's tests tell by exit codes why they are skipped."""
    reasons = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
    return ("skipped", reasons[code]) if code in reasons else ("failed", f"exit code {code}")


def end_after(name: str, rank: int) -> threading.Timer:
    """A clock that ends this rank, and so all, when a test takes too long."""

    def end() -> None:
        note(rank, name, "hung", f"not over after {LIMIT_S:g} s")
        faulthandler.dump_traceback(all_threads=True)
        os._exit(70)

    clock = threading.Timer(LIMIT_S, end)
    clock.daemon = True
    clock.start()
    return clock


def note(rank: int, name: str, outcome: str, reason: str = "", seconds: float = 0.0) -> None:
    line = {"test": name, "outcome": outcome, "reason": reason, "seconds": round(seconds, 2)}
    with (FOLDER / f"rank{rank}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def make_folders(world: Any) -> None:
    """The folders by which torch's tests meet, empty for each test."""
    made = tempfile.mkdtemp(dir=FOLDER) if world.rank == 0 else ""
    os.environ["TEMP_DIR"] = world.bcast_value(made)
    if world.rank == 0:
        for name in ("barrier", "test_dir", "init_dir"):
            (Path(made) / name).mkdir()
    world.barrier()
    torch_tests.Barrier.barrier_id = 0


def main() -> None:
    world = join().world
    dist.init_process_group = with_our_backend(dist.init_process_group)
    dist.new_group = with_our_backend(dist.new_group)
    if BACKEND == "mpi4py":  # torch's own refuses all backends but gloo, by name
        dist.monitored_barrier = paceline.torch_backend.monitored_barrier
    torch_tests.Barrier.sync.__func__.__defaults__ = (None, BARRIER_S)
    failed = False
    for name in TESTS:
        clock, began_s = end_after(name, world.rank), time.monotonic()
        make_folders(world)
        note(world.rank, name, "began")
        outcome, reason = run(name, world.rank)
        note(world.rank, name, outcome, reason, time.monotonic() - began_s)
        failed |= "failed" in world.allgather_values(outcome)
        if dist.is_initialized():
            dist.destroy_process_group()
        world.barrier()
        clock.cancel()
    sys.stdout.flush()
    sys.stderr.flush()
    if failed:
        world.barrier()
        os._exit(0)  # what a failed test has left must not keep the others waiting


main()
