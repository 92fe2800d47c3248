"""One call in a job of its own, as the resident world makes it: call.py MODULE:FUNCTION ARGUMENTS.

Rank 0 prints what the function returned, as JSON.
"""

import json
import sys

from support.resident import find

import paceline

world = paceline.init()
value = find(sys.argv[1])(world, *json.loads(sys.argv[2]))
if world.rank == 0:
    print("VALUE", json.dumps(value), flush=True)
