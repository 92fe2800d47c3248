"""A centre in the node's memory, with which several workers exchange at once."""

import numpy as np

from paceline.comm import run_world
from paceline.rules import Downpour
from paceline.sync.parameter_server.ledger import WorkerReport
from paceline.sync.parameter_server.node_centre import CHUNK_ELEMENTS, NodeCentre
from paceline.sync.parameter_server.spec import CentreSpec
from paceline.sync.parameter_server.worker_port import InPlacePort

WORKERS, PUSHES, SIZE = 4, 60, 3 * CHUNK_ELEMENTS + 17


def test_no_push_is_lost_however_many_come_at_once():
    """Each push takes 1 off every element; a worker that reads while another writes loses one."""
    rule = Downpour(pull_every=10**9)

    def program(world):
        weights = np.zeros(SIZE, np.float32)
        centre = NodeCentre(world, CentreSpec(rule, "float32", 0, 0, None), weights)
        state = rule.init_worker(weights)
        for push in range(1, PUSHES + 1):
            weights -= 1.0
            report = WorkerReport(samples=1, push=True)
            centre.push_pull(
                report, rule.terms(push, 1, WORKERS), InPlacePort(rule, weights, state)
            )
        result = np.empty_like(weights)
        centre.close(result)
        return result

    for result in run_world(WORKERS, program):
        assert np.unique(result).tolist() == [-WORKERS * PUSHES]
