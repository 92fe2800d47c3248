"""`paceline doctor` on this machine, as a user calls it."""

import json
import signal
import sys
from pathlib import Path

import pytest
from support.commands import PACELINE, started, wait_for


def test_this_machine_is_well(paceline):
    done = paceline("doctor", "--json")
    told = json.loads(done.stdout)
    assert [one for one in told["checks"] if one["verdict"] == "fail"] == []
    assert (done.returncode, told["runs"], told["world"]["size"]) == (0, True, 2)
    (node,) = told["nodes"].values()
    assert Path(node["executable"]).parent == Path(sys.executable).parent
    assert done.stderr == ""


@pytest.mark.slow
def test_a_fault_ends_with_a_failure_and_its_remedy(paceline):
    done = paceline("doctor", "--quick", OMP_NUM_THREADS="4096")
    assert done.returncode == 1
    assert "FAIL  threads" in done.stdout
    assert "-> Unset OMP_NUM_THREADS" in done.stdout
    assert done.stdout.endswith("Training would not run: 1 problem.\n")


@pytest.mark.slow
def test_a_library_that_cannot_be_loaded_is_told(paceline, tmp_path):
    done = paceline("doctor", MPI4PY_LIBMPI=str(tmp_path / "libmpi.so"))
    assert done.returncode == 1
    assert "FAIL  MPI library" in done.stdout
    assert "Check MPI4PY_LIBMPI" in done.stdout


@pytest.mark.slow
def test_ranks_end_with_doctor(tmp_path):
    """Interrupted while ranks run, it leaves none."""
    stay = tmp_path / "sitecustomize.py"  # every rank waits before it joins
    stay.write_text(
        "import os, time\nif 'OMPI_COMM_WORLD_RANK' in os.environ or 'PMI_RANK' in os.environ:\n"
        f"    open({str(tmp_path)!r} + f'/rank-{{os.getpid()}}', 'w').close()\n"
        "    time.sleep(3600)\n"
    )
    with started([PACELINE, "doctor"], tmp_path, PYTHONPATH=str(tmp_path)) as process:
        wait_for(lambda: len(list(tmp_path.glob("rank-*"))) >= 2, process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=90)
    assert process.returncode == 128 + signal.SIGTERM
    ranks = [path.name.removeprefix("rank-") for path in tmp_path.glob("rank-*")]
    assert not [rank for rank in ranks if runs(rank)]


def runs(pid: str) -> bool:
    """Unless it has ended, whether or not its parent has noticed."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
