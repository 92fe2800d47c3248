"""The networks that come with Paceline, by name; a framework is imported when one is built."""

from __future__ import annotations

MODELS = {"mnist": "paceline.models.mnist:MNISTNetwork"}
"""Name of a model, and where the function that builds it stands."""
