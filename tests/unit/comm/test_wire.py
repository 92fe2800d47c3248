"""Formats of fewer bytes: what rounding may lose, and what it must keep."""

import warnings

import numpy as np
import pytest

from paceline.comm.wire import BLOCK, ErrorFeedback, make_codec
from paceline.sync.settings import WIRES

LOSSY = [wire for wire in WIRES if wire != "float32"]
SIZES = [0, 1, 3, 1023, 1024, 1025, 70_001]

every_wire = pytest.mark.parametrize("wire", LOSSY)
every_type = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def there_and_back(wire, vector):
    codec = make_codec(wire, vector.dtype)
    data = np.full(codec.nbytes(vector.size) + 5, 77, np.uint8)
    before, out = vector.copy(), np.full_like(vector, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codec.encode(vector, data)
        codec.decode(data, out)
    assert vector.tobytes() == before.tobytes()
    assert data[-5:].tolist() == [77] * 5  # it stays in its bytes
    return out


def quantum(wire, vector):
    """For each element, twice the most that rounding may move it."""
    if wire == "int8":
        blocks = np.array_split(np.abs(vector), range(BLOCK, vector.size, BLOCK))
        return np.concatenate([np.full(b.size, b.max(initial=0) / 127) for b in blocks])
    bits = {"bfloat16": 8, "float16": 11}[wire]
    least = 2.0**-24 if wire == "float16" else 2.0**-133
    return np.maximum(2.0 ** (1 - bits) * np.abs(vector), least)


def numbers(size, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=size) * 10.0 ** rng.uniform(-6, 3, size)).astype(dtype)


def test_float32_needs_no_codec():
    assert make_codec("float32", np.float32) is None


@every_wire
@every_type
@pytest.mark.parametrize("size", SIZES)
def test_what_comes_back_is_near(wire, dtype, size):
    vector = numbers(size, dtype)
    back = there_and_back(wire, vector)
    assert back.dtype == dtype
    assert np.all(np.abs(back - vector) <= quantum(wire, vector) / 2 * (1 + 1e-5))
    assert size < 100 or np.any(back != vector)  # it rounds, so the bound says something


@pytest.mark.parametrize(("wire", "factor"), [("bfloat16", 2), ("float16", 2), ("int8", 3.98)])
def test_how_much_smaller_it_gets(wire, factor):
    size = 1_000_000
    assert 4 * size / make_codec(wire, np.float32).nbytes(size) == pytest.approx(factor, abs=0.01)


@every_wire
@every_type
def test_what_the_format_can_say_stays_exact(wire, dtype):
    vector = np.arange(-127, 128).astype(dtype) * 2.0**-7
    assert there_and_back(wire, vector).tobytes() == vector.tobytes()
    assert there_and_back(wire, np.zeros(2000, dtype)).tobytes() == np.zeros(2000, dtype).tobytes()


@every_wire
def test_twice_is_once(wire):
    once = there_and_back(wire, numbers(5000, np.float32))
    assert there_and_back(wire, once) == pytest.approx(once, rel=1e-6)


def test_bfloat16_rounds_to_nearest_and_ties_to_even():
    bits = np.array([0x3F800000, 0x3F808000, 0x3F808001, 0x3F818000, 0x3F817FFF], np.uint32)
    back = there_and_back("bfloat16", bits.view(np.float32))
    upper = (back.view(np.uint32) >> 16).tolist()
    assert upper == [0x3F80, 0x3F80, 0x3F81, 0x3F82, 0x3F81]


def test_float16_is_that_of_numpy():
    rng = np.random.default_rng(4)
    bits = rng.integers(0, 2**32, 300_000, dtype=np.uint32)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    between = (halves[:-1] + halves[1:]) / 2  # ties
    above, below = (np.nextafter(between, side, dtype=np.float32) for side in (np.inf, -np.inf))
    vector = np.concatenate([bits.view(np.float32), halves, between, above, below])
    vector = vector[np.abs(vector) <= 65504]
    back = there_and_back("float16", vector)
    assert back.tobytes() == vector.astype(np.float16).astype(np.float32).tobytes()


def test_float16_saturates():
    back = there_and_back("float16", np.array([1e5, -1e30, 65519.0, 3.0], np.float32))
    assert back.tolist() == [65504.0, -65504.0, 65504.0, 3.0]


@every_wire
@every_type
@pytest.mark.parametrize("size", [7, 3000, 140_000])
def test_what_is_not_finite_stays_so(wire, dtype, size):
    vector = numbers(size, dtype)
    odd = [np.nan, -np.nan, np.inf, -np.inf]
    vector[2:6] = odd
    all_ones = np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)  # NaN as well
    vector[:2] = all_ones
    back = there_and_back(wire, vector)
    assert not np.isfinite(back[:6]).any()
    if wire != "int8":
        assert np.isnan(back[:4]).all()
        assert back[4:6].tolist() == odd[2:]
        assert np.isfinite(back[6:]).all()
    assert np.isfinite(back[BLOCK:]).all()


@every_wire
def test_very_small_and_very_large_numbers(wire):
    tiny = np.array([1e-45, -1e-40, 3e-38, 0.0], np.float32)
    least = {"bfloat16": 2.0**-133, "float16": 2.0**-24, "int8": 2.0**-126}[wire]
    assert there_and_back(wire, tiny) == pytest.approx(tiny, rel=2.0**-8, abs=least / 2)
    large = there_and_back(wire, np.array([1e38, -3e38], np.float32))
    expected = [65504, -65504] if wire == "float16" else [1e38, -3e38]
    assert large == pytest.approx(expected, rel=0.01)
    beyond = there_and_back(wire, np.array([1e300, 1.0]))  # no float32 has it
    assert not np.isfinite(beyond[0])


@every_wire
@every_type
def test_add_adds(wire, dtype):
    codec, vector = make_codec(wire, dtype), numbers(70_001, dtype)
    data = np.empty(codec.nbytes(vector.size), np.uint8)
    codec.encode(vector, data)
    total = np.ones_like(vector)
    codec.add(data, total)
    assert total.tobytes() == (np.ones_like(vector) + there_and_back(wire, vector)).tobytes()


@every_wire
@every_type
def test_feedback_makes_good_for_rounding(wire, dtype):
    """The mean of N messages is within a quantum / N of what was meant."""
    vector = np.abs(numbers(3001, dtype)) + dtype(1e-3)
    codec = make_codec(wire, dtype)
    feedback = ErrorFeedback(codec, vector.size, dtype)
    data, back = np.empty(codec.nbytes(vector.size), np.uint8), np.empty_like(vector)
    total, before, messages = np.zeros(vector.size), vector.copy(), 50
    for _ in range(messages):
        feedback.encode(vector, data)
        codec.decode(data, back)
        total += back
    assert vector.tobytes() == before.tobytes()
    allowed = 1.1 * quantum(wire, vector)  # x + e may need a slightly larger one than x
    rounding = messages * 2.0**-22 * (np.abs(vector) + allowed)  # of float32 itself
    left = messages * vector.astype(float) - total
    assert np.all(np.abs(left) <= allowed + rounding)
    assert np.all(np.abs(feedback.error - left) <= rounding)
    without = messages * (there_and_back(wire, vector) - vector)
    assert not np.all(np.abs(without) <= allowed + rounding)


def test_feedback_of_a_part_has_its_part_of_the_error():
    codec, vector = make_codec("int8", np.float32), numbers(5000, np.float32)
    whole, parts = (ErrorFeedback(codec, 5000, np.float32) for _ in range(2))
    data = np.empty(codec.nbytes(5000), np.uint8)
    whole.encode(vector, data)
    for first, last in ((0, 2048), (2048, 5000)):
        parts.encode(vector[first:last], data, at=first)
    assert parts.error.tobytes() == whole.error.tobytes() != np.zeros_like(vector).tobytes()


@every_wire
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_feedback_forgets_what_is_not_finite(wire, broken):
    codec, vector = make_codec(wire, np.float32), numbers(3000, np.float32)
    feedback = ErrorFeedback(codec, vector.size, np.float32)
    data, back = np.empty(codec.nbytes(vector.size), np.uint8), np.empty_like(vector)
    sick = vector.copy()
    sick[5] = broken
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feedback.encode(sick, data)
    codec.decode(data, back)
    assert not np.isfinite(back[5])
    assert np.isfinite(feedback.error).all()
    feedback.encode(vector, data)
    codec.decode(data, back)
    assert np.isfinite(back).all()
