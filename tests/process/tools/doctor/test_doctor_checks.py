"""Plugins of srun, tried."""

from dataclasses import replace

from paceline.launch.preflight.node_info import NodeInfo
from paceline.tools.doctor.scheduler import try_srun


def test_plugins_are_tried_inside_a_slurm_job_alone(tmp_path):
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\ncase "$*" in *pmix_v4*) exit 0;; esac\necho broken >&2\nexit 1\n')
    srun.chmod(0o755)
    facts = NodeInfo(
        job="Slurm job 3",
        libmpi_version="Open MPI v5.0.11, package: here",
        commands={"srun": str(srun)},
        srun_mpi=["none", "pmi2", "pmix", "pmix_v4"],
    )
    assert try_srun(facts) == {"pmix": "broken"}
    assert try_srun(replace(facts, job="")) == {}
