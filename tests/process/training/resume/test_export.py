"""Exports in a fresh Python."""

import os
import subprocess
import sys

import pytest

KERAS = """
import io
from paceline.frameworks.model_files import PlainModel, _write_keras
text = '{"module": "keras", "class_name": "Sequential", "config": {"name": "empty", "layers": []}}'
_write_keras(PlainModel({}, {}, "keras", text), io.BytesIO())
"""


@pytest.mark.slow
def test_a_keras_checkpoint_is_exported_with_a_backend_that_is_there(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "openvino"}')
    env = {key: value for key, value in os.environ.items() if key != "KERAS_BACKEND"}
    done = subprocess.run(
        [sys.executable, "-c", KERAS], env={**env, "KERAS_HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
