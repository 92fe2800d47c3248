"""`paceline init`: what it writes runs as it is."""

import re
import shlex
from importlib.util import find_spec

import pytest

KINDS = ("loop", "trainer", "keras", "mpi-learn")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind", ["trainer", *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS if k != "trainer")]
)
def test_it_runs_as_it_is(paceline, tmp_path, kind):
    if kind in ("keras", "mpi-learn"):
        missing = [name for name in ("keras", "h5py") if find_spec(name) is None]
        if missing:
            pytest.skip(f"needs {' and '.join(missing)}")
    made = paceline("init", "mine", "--kind", kind)
    assert (made.returncode, made.stderr) == (0, "")
    start = re.search(r"try it: cd mine && paceline (.*)$", made.stdout, re.MULTILINE)[1]
    done = paceline(*shlex.split(start), cwd=tmp_path / "mine", timeout_s=250)
    assert done.returncode == 0, done.stderr
    readme = (tmp_path / "mine" / "README.md").read_text()
    assert f"`paceline {start}`" in readme
    assert "examples/" not in "".join(p.read_text() for p in (tmp_path / "mine").glob("*.py"))
    job = (tmp_path / "mine" / "job.sh").read_text()
    words = shlex.split(job.splitlines()[-1].replace("${1:-slurm}", "slurm --dry-run"))
    assert words[:2] == ["exec", "paceline"]
    shown = paceline(*" ".join(words[2:]).split(), cwd=tmp_path / "mine")
    assert shown.returncode == 0, shown.stderr
    assert "#SBATCH --nodes=2" in shown.stdout
    again = paceline("init", "mine")
    assert again.returncode == 2
    assert "mine is not empty; name a new folder" in again.stderr
