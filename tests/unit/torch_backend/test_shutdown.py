"""A group that is destroyed while operations are in progress."""

from types import SimpleNamespace

import pytest

from paceline.torch_backend import group as module
from paceline.torch_backend.group import MPIGroup


@pytest.mark.parametrize("operations", [0, 1, 40])
def test_one_timeout_for_all_operations_in_progress(monkeypatch, operations):
    clock = SimpleNamespace(now=100.0)
    waits = []

    def wait(operation, timeout_s):
        assert timeout_s >= 0
        waits.append(timeout_s)
        clock.now += timeout_s  # nothing ends by itself

    time = SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr(module, "time", time, raising=False)
    queues = [SimpleNamespace(waiting=[object()] * n, broken=None) for n in (operations, 0)]
    closed = []
    group = SimpleNamespace(
        _closed=False,
        _queue=queues[0],
        _callback_queue=queues[1],
        _progress=SimpleNamespace(wait=wait),
        _all_comms=SimpleNamespace(close=lambda: closed.append(True)),
    )
    MPIGroup.shutdown(group)
    assert len(waits) == operations  # all are looked at, be it for a moment
    assert sum(waits) <= module._CLOSE_TIMEOUT_S
    assert closed == ([] if operations else [True])
