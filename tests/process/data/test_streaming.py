"""Files far larger than memory are read with little of it."""

import json
import subprocess
import sys
import textwrap

import h5py
import numpy as np
import pytest

MB = 2**20
SAMPLES, SHAPE = 6_500_000, (28, 28, 1)
"""20 GB of float32."""

PROGRAM = """
    import json, re, sys
    from pathlib import Path
    import numpy as np
    from paceline.data import Shard, evaluation_batches, open_data, training_batches

    source = open_data(sys.argv[1], part="train")
    shard, seen, right = Shard(0, 2), [], True
    for batch in training_batches(source, shard=shard, batch_size=128, seed=1):
        seen += batch.indices.tolist()
        right &= bool((batch.targets == batch.indices % 10).all())
        if len(seen) > 800 * 128:
            break
    for number, batch in enumerate(evaluation_batches(source, shard=shard, batch_size=128)):
        right &= batch.inputs.shape == (128, 28, 28, 1)
        if number > 100:
            break
    # What getrusage tells is at least the size of the process that started this one.
    peak_kb = int(re.search("VmHWM:(.*) kB", Path("/proc/self/status").read_text())[1])
    print(json.dumps({
        "length": len(source), "seen": len(seen), "unique": len(set(seen)), "right": right,
        "spread": max(seen) - min(seen), "facts": source.order_facts,
        "torch": "torch" in sys.modules,
        "peak_mb": peak_kb / 1024,
    }))
"""


@pytest.fixture
def large(tmp_path):
    """Two files of 20 GB together; their images were never written, so they take no room."""
    half = SAMPLES // 2
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset(
                "features", (half, *SHAPE), np.float32, chunks=(100, *SHAPE), compression="gzip"
            )
            first = number * half
            file["labels"] = (np.arange(first, first + half) % 10).astype(np.uint8)
    (tmp_path / "train.list").write_text("*.h5\n")
    return tmp_path / "train.list"


def test_20_gb_are_shuffled_and_streamed_in_less_than_500_mb(large):
    nominal_bytes = SAMPLES * np.prod(SHAPE) * 4
    assert nominal_bytes > 20e9
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(large)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["length"] == SAMPLES
    assert found["seen"] == found["unique"] >= 800 * 128
    assert found["right"]
    assert found["spread"] > SAMPLES // 2  # of both files, from the first batches on
    assert found["facts"].startswith("windows of ")
    assert not found["torch"]
    assert found["peak_mb"] < 500
