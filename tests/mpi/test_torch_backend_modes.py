"""What torch builds on its process groups, on the backend mpi4py, under real mpirun."""

import pytest


@pytest.mark.timeout(240)
def test_what_stands_on_ddp_trains_as_on_gloo(mpirun):
    done = mpirun(3, "torch_backend_modes.py", timeout_s=230)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DONE") == 3
    assert done.stdout.count("passed check_") >= 21


@pytest.mark.timeout(240)
def test_meshes_shards_pipelines_and_checkpoints_give_what_one_rank_computes(mpirun, tmp_path):
    done = mpirun(4, "torch_backend_sharded.py", str(tmp_path), timeout_s=230)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DONE") == 4
    assert done.stdout.count("passed check_") >= 12
