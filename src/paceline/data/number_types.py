"""Which types of numbers a model can be fed with."""

NUMBERS = "biufc"
"""The kinds of dtype."""
LONG_DOUBLES = "gG"
"""Letters of those that no framework has, and whose bytes have gaps."""
NO_LONG_DOUBLES = "which no framework computes with; save it as float32 or float64"
