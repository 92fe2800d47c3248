"""What each rank of a benchmark runs: `python -m paceline.tools.bench FOLDER`."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

from paceline.core.user_code import load_function
from paceline.runtime.failure import describe, exit_code, fail
from paceline.runtime.world import init
from paceline.tools.bench.harness import read_task, write_answer


def main(folder: Path) -> int:
    """Call the function with the world; rank 0 stores its result."""
    program, settings, timeout_s = read_task(folder)
    # A rank that hangs prints where, and ends all ranks.
    faulthandler.dump_traceback_later(timeout_s, exit=True)
    world = init()
    try:
        answer = load_function(program)(world, settings)
        if world.rank == 0:
            write_answer(folder, answer)
    except BaseException as error:
        if world.size > 1:
            fail(world, error)
        sys.stderr.write(describe(world, error))
        return exit_code(error)
    faulthandler.cancel_dump_traceback_later()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
