"""What to say about a name that is unknown: the valid ones, and the one that was likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_COMPARED_CHARACTERS = 60  # comparing takes quadratic time, and names come from outside
_SHOWN_CHARACTERS = 100


def nearest(name: object, valid: Iterable[str]) -> str | None:
    """The valid name closest to `name`, if one is close.

    >>> nearest("epoch", ["epochs", "seed"]), nearest("epoch", ["seed"])
    ('epochs', None)
    """
    found = difflib.get_close_matches(str(name)[:_COMPARED_CHARACTERS], list(valid), n=1)
    return found[0] if found else None


def did_you_mean(name: object, valid: Iterable[str]) -> str:
    """A sentence to append to an error, or nothing.

    >>> did_you_mean("bps", ["bsp", "easgd"])
    ". Did you mean 'bsp'?"
    """
    near = nearest(name, valid)
    return f". Did you mean '{near}'?" if near else ""


def unknown_name(what: str, name: object, valid: Iterable[str]) -> str:
    """The error for a name that is not in a table.

    >>> unknown_name("rule", "bps", ["bsp", "easgd"])
    "rule is 'bps', expected one of: bsp, easgd. Did you mean 'bsp'?"
    """
    valid = list(valid)
    hint = did_you_mean(str(name).lower(), valid)
    shown = f"{name!s:.{_SHOWN_CHARACTERS}}"
    quoted = f"'{shown}'" if isinstance(name, str) else shown
    return f"{what} is {quoted}, expected one of: {', '.join(valid)}{hint}"


def unknown_settings(owner: str, given: Iterable[object], valid: Iterable[str]) -> str | None:
    """The error for settings that `owner` does not have, all at once; None if it has them all.

    >>> unknown_settings("optimizer adam", ["lr", "momentum"], ["lr", "betas"])
    'optimizer adam has no setting momentum; it takes: lr, betas'
    """
    valid = list(valid)
    unknown = [str(name) for name in given if name not in valid]
    if not unknown:
        return None
    takes = f"it takes: {', '.join(valid)}" if valid else "it takes none"
    return f"{owner} has no setting {', '.join(unknown)}; {takes}"
