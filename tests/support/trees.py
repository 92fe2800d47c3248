"""Trees of every kind, and a way to compare them bit for bit."""

import math

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

dtypes = (
    npst.boolean_dtypes()
    | npst.integer_dtypes(endianness="=")
    | npst.unsigned_integer_dtypes(endianness="=")
    | npst.floating_dtypes(endianness="=", sizes=(16, 32, 64))
)
arrays = npst.arrays(dtypes, npst.array_shapes(min_dims=0, min_side=0, max_side=3))
turned = arrays.map(lambda array: array.T[::2] if array.ndim else array)
# Every character, also surrogates, which text() leaves out, and what the format uses itself.
texts = st.text(
    st.characters(exclude_categories=()) | st.sampled_from("~/$\ud83d\ude00"), max_size=6
) | st.sampled_from(
    ["\ud800", "$\ud83d\ude00", "__metadata__", "$float", "$array", "$~", "~ud800", "~1", "$$", ""]
)
plain = st.none() | st.booleans() | st.integers() | st.floats() | texts
large = st.integers(0, 20_000).map(lambda bits: -(1 << bits))
leaves = plain | large | arrays | turned
trees = st.dictionaries(
    texts,
    st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


def bits(value):
    """Something that is equal for two trees only if they are equal bit for bit, in order."""
    if isinstance(value, dict):
        return "dict", [(key, bits(item)) for key, item in value.items()]
    if isinstance(value, list):
        return "list", [bits(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else value.hex()
    return type(value).__name__, value
