"""The page on unknown libraries: its code runs, and is that of the example."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BLOCKS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "your-framework.md").read_text(), re.DOTALL
)


def test_the_page_shows_the_class_of_the_example_as_it_is():
    source = (ROOT / "examples" / "pytensor_replica.py").read_text()
    assert BLOCKS[1].strip() in source
    code = [line for line in BLOCKS[1].splitlines() if line.strip()]
    assert len(code) <= 30  # as promised


def test_the_first_code_of_the_page_trains(tmp_path):
    code = f"{BLOCKS[0]}\nprint(result.summary['val_loss'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 0.05


@pytest.mark.slow
@pytest.mark.skipif(find_spec("pytensor") is None, reason="PyTensor is not installed")
def test_shared_variables_live_in_the_flat_vector(tmp_path):
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy as np
from pytensor_replica import build
from paceline.data import Batch
replica = build()
rng = np.random.default_rng(0)
batch = Batch(rng.normal(size=(8, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 8), 8)
for variable in replica.shared:
    held = variable.get_value(borrow=True)
    assert np.shares_memory(held, replica.parameters()), variable.name
before = replica.gradients(batch)
replica.apply()
assert replica.gradients(batch) < before
assert replica.evaluate(batch)["counted"] == 8
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "examples")],
        env=os.environ | {"PYTENSOR_FLAGS": f"base_compiledir={tmp_path}"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
