"""One rank (or all) fails in some way while the others wait for it."""

import os
import sys

import numpy as np

import paceline
from paceline.errors import DataError

how, who = sys.argv[1], sys.argv[2]
world = paceline.init()
if who in ("all", str(world.rank)):
    if how == "exception":
        raise ValueError("rank is unwell")
    if how == "paceline":
        raise DataError("file x is damaged")
    if how == "exit":
        os._exit(5)
    if how == "closed":
        sys.stdout.close()
        raise ValueError("rank is unwell")
world.all_reduce(np.zeros(10))
