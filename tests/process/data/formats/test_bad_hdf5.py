"""HDF5 files with damage anywhere, in a process of its own: what is read by C may crash."""

import json
import subprocess
import sys
import textwrap

import h5py
import numpy as np

DAMAGE = """
    import collections, json, resource, signal, sys
    from pathlib import Path
    import numpy as np
    from paceline.data import open_data
    from paceline.errors import DataError

    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    generator = np.random.default_rng(1)
    ends = collections.Counter()

    def attempt(path):
        source = open_data(str(path), part="train")
        for first in range(0, min(len(source), 10_000), 32):
            source.take(np.arange(first, min(first + 32, len(source))))

    def damaged(whole):
        for sixteenth in range(16):
            yield "cut", whole[: len(whole) * sixteenth // 16]
        used = np.flatnonzero(np.frombuffer(whole, np.uint8))
        for _ in range(250):
            changed = bytearray(whole)
            for _ in range(generator.integers(1, 4)):
                changed[generator.choice(used)] = generator.integers(256)
            yield "flip", bytes(changed)

    for file in map(Path, sys.argv[1:]):
        for kind, content in damaged(file.read_bytes()):
            path = file.with_name(f"damaged-{sum(ends.values())}.h5")
            path.write_bytes(content)
            signal.alarm(20)  # of one file: no handler, so it ends the process
            try:
                attempt(path)
                ends[f"{kind}: read"] += 1
            except DataError as error:
                ends[f"{kind}: error, named {path.name in str(error)}"] += 1
            path.unlink()
    print(json.dumps(ends))
"""


def test_files_with_damage_anywhere(tmp_path):
    """In a process of its own: what is read by C may crash, or never end."""
    generator = np.random.default_rng(1)
    for name, options in {
        "plain": {},
        "packed": {"chunks": (16, 6), "compression": "gzip"},
    }.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=generator.normal(size=(64, 6)), **options)
            file["y"] = generator.integers(0, 3, 64)
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DAMAGE), *files],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    ends = json.loads(run.stdout)
    assert ends.pop("cut: error, named True") == 32
    assert ends.pop("flip: error, named True") + ends.pop("flip: read") == 500
    assert ends == {}
