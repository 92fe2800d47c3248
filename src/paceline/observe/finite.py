"""Values that JSON can hold: NaN and infinity have no spelling there, so they become null."""

import math
from typing import Any


def finite(value: Any) -> Any:
    """Return `value` with every NaN or infinite float in it, however deep, replaced by None.

    Numpy scalars and arrays become plain Python values on the way.

    >>> finite({"loss": float("nan"), "norms": (1.0, float("inf"))})
    {'loss': None, 'norms': [1.0, None]}
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
