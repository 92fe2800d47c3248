"""A script for mpi_learn under real mpirun: it trains, ends, and never hangs."""

import re

import numpy as np
import pytest

SAMPLES = 903
PROGRAM = "mpi_learn_numpy.py"


def write_files(folder, lengths):
    """Four classes around four centres; the first column numbers the samples."""
    draw = np.random.default_rng(3)
    centres = draw.normal(size=(4, 64)).astype(np.float32)
    first = 0
    for part, sizes in (("train", lengths), ("test", [200])):
        for number, size in enumerate(sizes):
            y = draw.integers(0, 4, size)
            x = centres[y] + draw.normal(0, 2.0, (size, 64)).astype(np.float32)
            places = np.arange(first, first + size, dtype=np.float32)[:, np.newaxis]
            np.savez(folder / f"{part}{number}.npz", x=np.hstack([places, x]), y=y)
            first += size


def test_uneven_files_and_all_modes(mpirun, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, [640, 3, 260])
    modes = ["downpour", "synchronous", "easgd:0.05", "easgd:1e-7", "target"]
    done = mpirun(3, PROGRAM, tmp_path, *modes)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"TRAINED (\S+) LOSS (\S+) EPOCHS (\d)", done.stdout)
    assert [what for what, _, _ in found] == modes
    losses = {what: float(figure) for what, figure, _ in found}
    assert max(losses[what] for what in modes[:3]) < 0.3
    assert losses["easgd:1e-7"] == pytest.approx(np.log(4), abs=0.01)  # the rate takes effect
    assert [int(epochs) for _, _, epochs in found] == [3, 3, 3, 3, 1]
    seen = re.findall(r"SEEN (\S+) (\d+) \{(\d)\} \[(.*)\]", done.stdout)
    assert [(what, int(count), int(times)) for what, count, times, _ in seen[:3]] == [
        (what, SAMPLES, 3) for what in modes[:3]
    ]
    assert seen[0][3] == "True, True, False"  # the last rank is the master
    assert seen[1][3] == "True, True, True"


@pytest.mark.slow
def test_fewer_files_than_workers(mpirun, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, [SAMPLES])
    done = mpirun(4, PROGRAM, tmp_path, "downpour")
    assert done.returncode == 0, done.stderr
    assert f"SEEN downpour {SAMPLES} {{3}} [True, True, True, False]" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raise", "a worker that raises"),
        ("comm", "comm has 1 ranks, of which this is 0, and the world 2"),
        ("forget", "without calling manager.process.train()"),
    ],
)
def test_what_goes_wrong_ends_all_ranks(mpirun, tmp_path, monkeypatch, what, message):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, [SAMPLES])
    done = mpirun(2 if what != "raise" else 3, PROGRAM, tmp_path, what)
    assert done.returncode != 0
    assert message in done.stderr
