"""Trees of state: what checkpoints, summaries and records hold."""

# A tree holds values of any type, and who reads one knows what was put there.
# mypy: disable-error-code="explicit-any"

from typing import Any

Tree = dict[str, Any]
"""Nested dicts with str keys. Leaves are numpy arrays, None, bool, int, float, str, or lists."""
