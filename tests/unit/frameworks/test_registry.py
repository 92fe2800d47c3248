"""Which adapter a model gets."""

import pytest

from paceline.errors import ReplicaError
from paceline.frameworks import is_model, make_replica
from paceline.frameworks.numpy import NumpyReplica


def test_a_model_of_no_known_framework_is_refused_with_those_that_are():
    with pytest.raises(ReplicaError, match=r"is a builtins\.dict, .* model of: keras, jax, torch;"):
        make_replica({}, "mse", {"name": "sgd"})
    assert not is_model({})


def test_a_class_is_not_a_model():
    assert not is_model(NumpyReplica)
