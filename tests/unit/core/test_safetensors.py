"""Our writer of safetensors against the library's reader."""

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load

from paceline.core.safetensors import Tensor, safetensors_chunks


def test_the_library_reads_what_we_write(tmp_path):
    arrays = {
        "wide": np.arange(300_000, dtype=np.float64).reshape(2, -1),
        "turned": np.arange(6, dtype=np.int16).reshape(2, 3).T,
        "swapped": np.arange(3, dtype=">f4"),
        "scalar": np.array(True),
        "empty": np.empty((0, 3), np.uint8),
    }
    tensors = {name: Tensor.of(array) for name, array in arrays.items()}
    parts = list(safetensors_chunks(tensors, {"format": "np"}))
    found = load(b"".join(parts))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    assert max(len(part) for part in parts) <= 1 << 20
    (tmp_path / "a.safetensors").write_bytes(b"".join(parts))
    with safe_open(tmp_path / "a.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "np"}


def test_no_contiguous_array_is_copied():
    array = np.arange(4.0)
    *_, last = safetensors_chunks({"a": Tensor.of(array)})
    assert np.shares_memory(np.frombuffer(last, np.uint8), array)
