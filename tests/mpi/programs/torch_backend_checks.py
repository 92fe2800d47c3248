"""How programs of checks of the torch backend run them, and end."""

import torch.distributed as dist

from paceline.torch_backend.joined import drive


def run_checks(namespace):
    """Call each `check_...` on all ranks, one after the other; nothing may be left under way."""
    checks = [value for name, value in namespace.items() if name.startswith("check_")]
    rank = dist.get_rank()
    for check in checks:
        check()
        dist.barrier()
        if rank == 0:
            print("passed", check.__name__, flush=True)
    assert drive().count == 0
    dist.destroy_process_group()
    print("DONE", len(checks), flush=True)
