"""What a call costs, compared with another in the same run."""

from __future__ import annotations

import timeit
from collections.abc import Callable


def cost_ratio(call: Callable[[], object], other: Callable[[], object], number: int = 200) -> float:
    """How many times what the other costs.

    They take turns, in rounds much shorter than what the kernel gives a process at a time; so
    however busy the machine is, the quickest round of each is undisturbed.
    """
    rounds = [
        [timeit.timeit(call, number=number), timeit.timeit(other, number=number)]
        for _ in range(100)
    ]
    return min(one for one, _ in rounds) / min(two for _, two in rounds)
