"""The names of paceline; tests/process looks at what importing it loads."""

from importlib.util import find_spec

import pytest

import paceline
from paceline.errors import ConfigError


def test_every_public_name_exists():
    lacking = {"JaxModel"} if find_spec("jax") is None else set()
    for name in set(paceline.__all__) - lacking:
        assert getattr(paceline, name) is not None
    for name in lacking:
        with pytest.raises(ConfigError, match="JAX is not installed"):
            getattr(paceline, name)
    assert set(paceline.__all__) <= set(dir(paceline))


def test_unknown_names_are_attribute_errors():
    assert not hasattr(paceline, "no_such_name")
