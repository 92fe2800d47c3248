"""Ranks start where the environment has neither HOME nor PATH, without banners of Open MPI."""

import os
import subprocess
import sys
from pathlib import Path


def test_no_home_and_no_path(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import paceline\nworld = paceline.init()\nprint('rank', world.rank, 'of', world.size)\n"
    )
    bare = {name: value for name, value in os.environ.items() if name not in ("HOME", "PATH")}
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "run", "-n", "2", "--", str(program)],
        env=bare, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    assert "MCA" not in done.stderr
    assert "opal" not in done.stderr
