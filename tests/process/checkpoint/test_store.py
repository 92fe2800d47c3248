"""Checkpoints on disks that are full, and of ranks that are killed."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from support.checkpoint_folders import FOLDER_MARKS, hidden

from paceline.checkpoint.store import Store, newest_valid

FULL = """
import json, os, resource, sys
from pathlib import Path
import numpy as np
from paceline.errors import OutputError
from paceline.checkpoint.store import Store, newest_valid

folder, kind = Path(sys.argv[1]), sys.argv[2]
store = Store(folder / "checkpoints")

def save(name, floats):
    store.begin(name)
    store.write(name, "model", {"w": np.ones(floats), "text": "x" * 5000})
    store.commit(name, ["model"], {"step": 1})

def attempt(floats):
    try:
        save("step-2", floats)
        error = None
    except OutputError as failure:
        error = str(failure)
    reports = []
    sound = newest_valid(store, reports.append)
    store.check("step-1")
    print(json.dumps([error, sound, sorted(os.listdir(store.folder)), reports]), flush=True)
    return error

save("step-1", 10)
if kind == "limit":
    for limit_bytes, floats in ((4000, 1000), (4000, 10), (30_000, 1000), (30_000, 10_000)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))
        attempt(floats)
else:
    filler = os.open(folder / "filler", os.O_CREAT | os.O_WRONLY)
    size = 0
    try:
        while True:
            size += os.write(filler, bytes(4096))
    except OSError:
        pass
    for pages in range(40):
        os.ftruncate(filler, size - 4096 * pages)
        if attempt(1500) is None:
            break
"""


def run_full(*command):
    answer = subprocess.run(command, capture_output=True, text=True, timeout=50)
    if answer.returncode == 77:
        pytest.skip(f"no file system can be mounted here: {answer.stderr.strip()}")
    assert answer.returncode == 0, answer.stderr
    return [json.loads(line) for line in answer.stdout.splitlines()]


def assert_old_one_survived(attempts, reason):
    for error, newest, entries, reports in attempts:
        assert f"checkpoints/step-2 cannot be written: {reason}; " in error
        assert (newest, entries, reports) == ("step-1", ["step-1"], [])


@pytest.mark.timeout(60)
def test_a_limit_of_file_sizes_leaves_the_old_checkpoint(tmp_path):
    *attempts, fits, last = run_full(sys.executable, "-c", FULL, str(tmp_path), "limit")
    assert len(attempts) == 2
    assert_old_one_survived(attempts, "File too large")
    assert fits[:3] == [None, "step-2", ["step-1", "step-2"]]
    # The one that fits is not harmed by the next, of the same name, which does not.
    assert "File too large" in last[0]
    assert last[1:] == ["step-2", ["step-1", "step-2"], []]


@pytest.mark.timeout(60)
def test_a_full_disk_leaves_the_old_checkpoint(tmp_path):
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root, with unshare, can mount a small file system for this test")
    # In a mount namespace of its own, so that nothing stays mounted however this ends.
    script = 'mount -t tmpfs -o size=256k paceline "$1" || exit 77; exec "$2" -c "$3" "$1" disk'
    shell = ["sh", "-c", script, "sh", str(tmp_path), sys.executable, FULL]
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, timeout=20).returncode:
        pytest.skip("unshare -m is not allowed here")
    *attempts, last = run_full("unshare", "-m", *shell)
    assert len(attempts) >= 4
    assert_old_one_survived(attempts, "No space left on device")
    assert last[:3] == [None, "step-2", ["step-1", "step-2"]]
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, shutil, signal, sys, zlib
from pathlib import Path
import numpy as np
from paceline.checkpoint import files
from paceline.checkpoint.store import Store
from paceline.core import safetensors

def save(store, name, number):
    store.begin(name)
    store.write(name, "model", {"w": np.full(1000, number)})
    store.commit(name, ["model"], {"number": number})

def die_at(moment):
    left = [moment]
    def tick(*_):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    def after(function):
        def call(*arguments):
            tick()
            return function(*arguments)
        return call
    files.zlib.crc32 = after(zlib.crc32)
    os.fsync = after(os.fsync)
    events = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"}
    sys.addaudithook(lambda event, _: tick() if event in events else None)

safetensors.CHUNK_BYTES = 1000
root = Path(sys.argv[1])
save(Store(root / "start"), "step-1", 1)
for moment in range(1000):
    place = root / str(moment)
    shutil.copytree(root / "start", place)
    child = os.fork()
    if child == 0:
        store = Store(place, keep=1)
        die_at(moment)
        save(store, "step-2", 2)
        save(store, "step-2", 3)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        print(moment)
        break
"""


@pytest.mark.timeout(110)
def test_a_run_that_is_killed_at_any_moment_leaves_a_sound_checkpoint(tmp_path):
    answer = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, timeout=100
    )
    assert answer.returncode == 0, answer.stderr
    numbers, left_behind = [], set()
    for moment in range(int(answer.stdout) + 1):
        store = Store(tmp_path / str(moment))
        reports = []
        name = newest_valid(store, reports.append)
        assert reports == []
        numbers.append(store.facts(name)["number"])
        assert name == ("step-1" if numbers[-1] == 1 else "step-2")
        assert store.read(name, "model")["w"].tolist() == [numbers[-1]] * 1000
        left_behind |= {mark for mark in FOLDER_MARKS for entry in hidden(store) if mark in entry}
        before = store.names()
        store.begin("step-9")
        assert hidden(store) == [".draft-step-9"]
        assert store.names() == before
        assert store.facts(name)["number"] == numbers[-1]
    assert numbers == sorted(numbers)
    assert set(numbers) == {1, 2, 3}
    assert left_behind == set(FOLDER_MARKS)
    assert len(numbers) > 40
