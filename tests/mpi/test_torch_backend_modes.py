"""What torch builds on its process groups, on the backend mpi4py, under real mpirun."""

import pytest

RUN = "support.torch_backend_checks:run_program"


def test_what_stands_on_ddp_trains_as_on_gloo(resident):
    assert len(resident(3, RUN, "torch_backend_modes.py")) >= 20


def test_meshes_shards_pipelines_and_checkpoints_give_what_one_rank_computes(resident, tmp_path):
    assert len(resident(4, RUN, "torch_backend_sharded.py", tmp_path)) >= 11


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 4])
def test_compiled_models_and_collectives(resident, ranks):
    """To compile takes longer than all the other checks together."""
    assert len(resident(ranks, RUN, "torch_backend_compiled.py")) == 2
