"""A centre for which the node has no memory left."""

import numpy as np
import pytest

from paceline.comm import SoloWorld
from paceline.errors import WorldError
from paceline.rules import EASGD
from paceline.sync.parameter_server.node_centre import NodeCentre
from paceline.sync.parameter_server.spec import CentreSpec


class Full(SoloWorld):
    def node_memory(self, nbytes, locks=1):
        raise WorldError("8 bytes of node memory are needed and 0 are free. Enlarge /dev/shm")


def test_the_advice_names_what_rules_with_a_centre_have():
    weights = np.ones(3, np.float32)
    with pytest.raises(WorldError, match=r"Enlarge /dev/shm; exchange\.servers=1 holds the"):
        NodeCentre(Full(), CentreSpec(EASGD(), "float32", 0, 1, None), weights)
