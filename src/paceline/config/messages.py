"""Values, keys and text of others within our messages: on one line, and not too long."""

from __future__ import annotations

_LONGEST_VALUE = 200
_LONGEST_KEY = 100
_LONGEST_TEXT = 1000
"""Not much longer than the longest of our own messages."""


def show(value: object) -> str:
    """A value, as Python writes it.

    >>> show("digits"), show(10**5000)
    ("'digits'", '<int>')
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # Python writes no number of more than 4300 digits
        return f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def show_key(key: str) -> str:
    """A key as it is, unless it would garble the message."""
    return key if key.isprintable() and len(key) <= _LONGEST_KEY else show(key)


def one_line(text: object) -> str:
    """Text that others wrote, as an error of a library."""
    words = " ".join(str(text).split())
    return words if len(words) <= _LONGEST_TEXT else f"{words[:_LONGEST_TEXT]}..."
