"""Small values between ranks: all come back as they were, and nothing else does."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.checkpoint.saver import OpenCheckpoint
from paceline.comm.values import from_bytes, to_bytes
from paceline.core.vectors import Layout
from paceline.errors import ConfigError, Interrupted, PacelineError
from paceline.observe import EpochRecord, TimeSplit

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(scalars, inner)
        | st.sets(scalars)
        | st.frozensets(scalars)
    ),
    max_leaves=20,
)


@given(values)
def test_plain_values_come_back(value):
    again = from_bytes(to_bytes(value))
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -0.0], ids=repr)
def test_odd_numbers_come_back(value):
    assert repr(from_bytes(to_bytes(value))) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        Path("/a/b"),
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.float32(1.5),
        np.array(3.0),
        np.zeros((0, 4)),
        Layout.of([("w", (2, 3), "float32")]),
        OpenCheckpoint(7, 12),
        [EpochRecord(1, 2, 3.0, None, float("inf"), 0.5, 0.1, 9.0, TimeSplit(compute=2.0))],
    ],
    ids=lambda value: type(value).__name__,
)
def test_classes_of_paceline_come_back(value):
    again = from_bytes(to_bytes(value))
    assert type(again) is type(value)
    if isinstance(value, np.ndarray | np.generic):
        assert again.dtype == value.dtype
        assert again.shape == value.shape
        assert again.tobytes() == value.tobytes()
    else:
        assert again == value


@pytest.mark.parametrize("error", [ConfigError("lr is 0"), Interrupted("saved", 130)], ids=repr)
def test_errors_come_back(error):
    again = from_bytes(to_bytes(error))
    assert isinstance(again, PacelineError)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


class Foreign:
    pass


@pytest.mark.parametrize(
    "value",
    [Foreign(), ValueError("x"), np.array([Foreign()])],
    ids=["object", "error", "array of objects"],
)
def test_other_objects_are_refused(value):
    with pytest.raises(TypeError, match="cannot be sent to other ranks"):
        to_bytes(value)


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "subprocess:Popen",
        "paceline.cli:main",
        "paceline.launch.mpirun:subprocess.Popen",
    ],
)
def test_no_other_class_is_made(name):
    with pytest.raises(ValueError, match="another rank sent a"):
        from_bytes(json.dumps({"$data": [name, {}]}).encode())
    with pytest.raises(ValueError, match="another rank sent a"):
        from_bytes(json.dumps({"$tuple": [name, []]}).encode())
