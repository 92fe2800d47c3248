"""Numbers as people read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.observe import TimeSplit
from paceline.observe.history import EpochRecord
from paceline.observe.numbers import (
    Course,
    format_count,
    format_duration,
    format_loss,
    format_percent,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_loss(0.03456), "0.0346"),
        (format_loss(None), "-"),
        (format_loss(math.nan), "nan"),
        (format_loss(-1234567.0), "-1.235e+06"),
        (format_percent(0.98714), "98.71 %"),
        (format_percent(1.0, decimals=1), "100.0 %"),
        (format_percent(None), "-"),
        (format_count(12345.4), "12,345"),
        (format_count(0), "0"),
        (format_count(math.inf), "-"),
        (format_count(None), "-"),
        (format_duration(82.1), "0:01:23"),
        (format_duration(0), "0:00:00"),
        (format_duration(100 * 3600), "100:00:00"),
        (format_duration(math.inf), "-"),
        (format_duration(None), "-"),
    ],
)
def test_numbers_are_written_as_people_read_them(text, expected):
    assert text == expected


def test_remaining_time_covers_the_epochs_to_come():
    course = Course(epochs=3, samples_per_epoch=1000)
    assert course.remaining_s(epoch=1, samples=0, samples_per_s=100.0) == 30.0
    assert course.remaining_s(epoch=2, samples=500, samples_per_s=100.0) == 15.0
    assert course.remaining_s(epoch=3, samples=1000, samples_per_s=100.0) == 0.0
    assert course.remaining_s(epoch=3, samples=1100, samples_per_s=100.0) == 0.0


@pytest.mark.parametrize("samples_per_s", [0.0, -1.0, math.nan, math.inf])
def test_remaining_time_is_unknown_without_a_pace(samples_per_s):
    assert Course(3, 1000).remaining_s(1, 0, samples_per_s) is None


def test_remaining_time_is_unknown_without_a_length():
    assert Course(3, None).remaining_s(1, 0, 100.0) is None
    assert Course(3, None).describe(1, 640, 0.5, 100.0) == (
        "640  loss 0.5000  100 samples/s  - left"
    )


@given(
    st.integers(0, 10**9),
    st.none() | st.integers(0, 10**9),
    st.none() | st.floats(),
    st.floats(),
)
def test_any_state_can_be_described(samples, length, loss, samples_per_s):
    text = Course(10, length).describe(1, samples, loss, samples_per_s)
    assert text.startswith(f"{samples:,}")
    assert text.endswith(" left")


@pytest.mark.parametrize(
    ("data_s", "told"), [(3.0, "  30 % waiting for data"), (0.4, ""), (0.0, "")]
)
def test_an_epoch_that_waited_for_data_says_so(data_s, told):
    time = TimeSplit(10 - data_s, 0, 0, data_s)
    record = EpochRecord(1, 100, 10.0, 0.25, None, None, 0.1, 10.0, time)
    line = Course(5, 100).describe_epoch(record)
    assert line == f"epoch 1/5  train loss 0.2500  10 samples/s  10.0 s{told}"
