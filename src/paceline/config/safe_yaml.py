"""YAML of unknown origin as plain values: it runs no code, and cannot take for ever."""

from __future__ import annotations

from typing import Any

import yaml

from paceline.config.messages import show
from paceline.core.user_code import describe_failure

MOST_BYTES = 262_144
"""Limit of a run file, far beyond any real one."""
_MOST_VALUES = 10_000
_MOST_MERGES = 16
_DEEPEST = 32
_MERGE = "tag:yaml.org,2002:merge"


def load_yaml(text: str) -> object:
    """Plain values; a YAMLError for text that is not YAML, or that would take for ever to walk."""
    if len(text) > MOST_BYTES:
        raise yaml.YAMLError(f"it is longer than {MOST_BYTES} bytes, expected settings")
    try:
        content = _construct(text)
    except yaml.YAMLError:
        raise
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except Exception as error:  # PyYAML does not check whether 2024-13-45 is a date
        cause = describe_failure(error)
        raise yaml.YAMLError(f"a value is not what it is written as: {cause}") from error
    _check_values(content)
    return content


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, of which other loaders keep the last, and merges that explode."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                raise yaml.YAMLError(f"the key {show(key.value)} is given twice{key.start_mark}")
            seen.add((key.tag, key.value))
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, value in node.value:
            merges = len(value.value) if isinstance(value, yaml.SequenceNode) else 1
            if key.tag == _MERGE and merges > _MOST_MERGES:
                raise yaml.YAMLError(f"<< merges {merges} sections, expected 1 to {_MOST_MERGES}")
        super().flatten_mapping(node)
        if len(node.value) > _MOST_VALUES:
            raise yaml.YAMLError(f"with its merges it has more than {_MOST_VALUES} values")


def _construct(text: str) -> object:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _check_values(content: object) -> None:
    """Aliases may expand to more values than there are atoms, or refer to themselves."""
    ahead, seen = [(content, 0)], 0
    while ahead:
        seen += 1
        if seen > _MOST_VALUES:
            raise yaml.YAMLError(f"with its aliases it has more than {_MOST_VALUES} values")
        value, depth = ahead.pop()
        if depth > _DEEPEST and isinstance(value, dict | list | tuple | set):
            raise yaml.YAMLError("it is nested too deeply")
        if isinstance(value, str):
            _check_text(value)
        elif isinstance(value, dict):
            for key in value:
                _check_key(key)
            ahead.extend((item, depth + 1) for item in value.values())
        elif isinstance(value, list | tuple | set):
            ahead.extend((item, depth + 1) for item in value)


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        kind = type(key).__name__
        raise yaml.YAMLError(f"the key {show(key)} is a {kind}, expected a name; put it in quotes")
    _check_text(key)


def _check_text(text: str) -> None:
    """Neither file names nor terminals can hold these characters."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise yaml.YAMLError(f"the text {show(text)} has a character that cannot be written")
