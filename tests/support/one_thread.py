"""Small models on machines with other work to do."""

import sys


def keep_torch_to_one_thread() -> None:
    """Threads of OpenMP wait for each other by spinning: if one of them has to wait for a core,
    even a layer of nine units takes a tenth of a second. Torch is not imported for this."""
    torch = sys.modules.get("torch")
    if hasattr(torch, "set_num_threads") and torch.get_num_threads() > 1:
        torch.set_num_threads(1)
