"""How programs of checks of the torch backend run them, and end."""

import runpy
import sys
import warnings
from pathlib import Path

import pytest
import torch.distributed as dist

from paceline.torch_backend.joined import progress_engine

PROGRAMS = Path(__file__).parents[1] / "mpi" / "programs"


def run_checks(namespace):
    """Call each `check_...` on all ranks, in turn; no operation may be left in progress."""
    checks = [value for name, value in namespace.items() if name.startswith("check_")]
    rank = dist.get_rank()
    for check in checks:
        check()
        dist.barrier()
        if rank == 0:
            print("passed", check.__name__, flush=True)
    assert progress_engine().count == 0
    dist.destroy_process_group()
    print("DONE", len(checks), flush=True)
    return [check.__name__ for check in checks]


def run_program(world, name, *arguments):
    """Run a program of checks on the ranks of this world; what it calls FOUND.

    It runs anew each time, since much of it is made for one number of ranks.
    """
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        found = runpy.run_path(str(PROGRAMS / name))["FOUND"]
    assert not dist.is_initialized()
    return found
