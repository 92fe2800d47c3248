"""torch.compile on parameters that ranks share."""

import json
import re

import pytest


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_compiled_model_takes_the_course_of_the_plain_one(mpirun, tmp_path):
    done = mpirun(
        2, "compiled.py", tmp_path, timeout_s=380, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache")
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(re.search(r"OUTCOME (.*)", done.stdout)[1])
    assert all(graphs > 0 for graphs in outcome["graphs"])  # it was compiled, on both ranks
    for plain, compiled in zip(outcome["plain"], outcome["compiled"], strict=True):
        assert compiled == pytest.approx(plain, rel=1e-4)


@pytest.mark.slow
def test_without_a_compiler_the_error_says_so(mpirun, tmp_path):
    cache = str(tmp_path / "cache")
    done = mpirun(
        1, "compiled.py", tmp_path, timeout_s=110, CXX="/nowhere", TORCHINDUCTOR_CACHE_DIR=cache
    )
    assert done.returncode != 0
    assert "ConfigError: torch.compile failed" in done.stderr
    assert "omit compile" in done.stderr
