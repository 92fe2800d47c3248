"""What the probe says of this node, and of commands that fail."""

import os
import subprocess
import sys

from paceline.cluster.commands import answer, explain_failure
from paceline.launch.preflight.node_info import from_json


def test_why_a_command_fails_is_told():
    assert explain_failure(["true"]) == ""
    assert explain_failure(["sh", "-c", "echo first >&2; echo second >&2; exit 3"]) == "first"
    assert explain_failure(["sh", "-c", "exit 3"]) == "exit code 3"
    assert explain_failure(["sleep", "9"], timeout_s=0.05).startswith("no answer")
    assert answer(["sh", "-c", "echo no; exit 1"]) == ""


def test_the_probe_prints_the_facts_of_this_node():
    env = {**os.environ, "OMP_NUM_THREADS": "3", "SLURM_JOB_ID": "5", "SLURM_NTASKS": "many"}
    argv = [sys.executable, "-m", "paceline.launch.preflight.probe"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env)
    facts = from_json(done.stdout)
    assert (facts.threads, facts.job, facts.executable) == ("3", "Slurm job 5", sys.executable)
    assert "SLURM_NTASKS is 'many'" in facts.job_problem
    assert facts.affinity == sorted(os.sched_getaffinity(0))
    assert facts.libmpi_kind == facts.mpirun_kind
    assert "lo" in facts.interfaces
    assert facts.memory_bytes > facts.memory_free_bytes > 0
