"""Callbacks of Keras in runs of the Trainer on two real ranks: once, on rank 0, for all."""

import json
from importlib.util import find_spec

import pytest

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

NEEDED = ("keras", "torch", "tensorflow", "h5py")  # TensorBoard writes with TensorFlow


def test_callbacks_of_keras_run_once_for_all_ranks(mpirun, tmp_path):
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    done = mpirun(2, "keras_callbacks.py", tmp_path, timeout_s=280, KERAS_BACKEND="torch")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("OUTCOME"))
    found = json.loads(line.removeprefix("OUTCOME"))
    assert set(found) == {"bsp", "diloco", "easgd"}
    for name, case in found.items():
        check_case(name, case)
    for name in ("bsp", "diloco"):  # in lock step all is known in advance
        case = found[name]
        assert case["epochs"] == 3, name
        assert case["rates"] == [0.01, 0.01], name
        assert case["recorded"] == pytest.approx([0.04, 0.04, 0.02]), name
        assert case["restored"] == pytest.approx(case["val_loss"][0], rel=1e-4), name


def check_case(name, case):
    led, other = case["calls"]
    assert other == [], f"{name}: rank 1 ran callbacks, too"
    assert [epoch for epoch, _ in led] == list(range(case["epochs"])), name
    assert led[0][1] == ["learning_rate", "loss", "val_loss"], name
    assert case["stopped"] == "a callback asked for it", name
    assert 3 <= case["epochs"] < 12, f"{name}: early stopping after two epochs without a better one"
    assert len(set(case["rates"])) == 1, f"{name}: the ranks have different rates"
    assert case["rates"][0] < 0.04, f"{name}: the rate was never reduced"
    assert case["models"] == 1, f"{name}: the ranks end with different weights"
    assert case["from_first"] == 0, f"{name}: not the weights of the best epoch"
    saved = [f"0-{epoch + 1}.weights.h5" for epoch in range(case["epochs"])]
    assert case["files"] == sorted([*saved, "0.csv", "board-0", "run"]), name
