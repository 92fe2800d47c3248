"""Waiting without burning a core."""

import threading
import time

import pytest

from paceline.comm import Backoff, wait_until


class Later:
    """Something that is done after so many looks."""

    source = 0

    def __init__(self, looks):
        self.looks = looks

    def done(self):
        self.looks -= 1
        return self.looks < 0


def test_a_long_wait_burns_less_than_a_twentieth_of_a_core():
    came = threading.Event()
    timer = threading.Timer(0.5, came.set)
    timer.start()
    # of this thread alone: those of NumPy's BLAS spin on for 0.1 s after a product of matrices
    began, burnt = time.monotonic(), time.thread_time()
    wait_until(came.is_set)
    burnt, took = time.thread_time() - burnt, time.monotonic() - began
    assert took > 0.4
    assert burnt < 0.05 * took


def test_sleeps_grow_to_the_longest_and_start_over_after_a_reset(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    backoff = Backoff(longest_s=0.001, yields=3, shortest_s=0.0001)
    for _ in range(3):
        backoff.pause()
    assert slept == []  # first the processor is only offered to others
    for _ in range(20):
        backoff.pause()
    assert slept[0] == 0.0001
    assert slept == sorted(slept)
    assert slept[-1] == 0.001
    backoff.reset()
    for _ in range(4):
        backoff.pause()
    assert len(slept) == 21
    assert slept[-1] == 0.0001


def test_no_sleep_is_longer_than_asked_for(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    wait_until(Later(200).done, longest_s=1e-5)
    assert slept
    assert max(slept) == 1e-5


def test_what_is_there_at_once_costs_no_pause(monkeypatch):
    monkeypatch.setattr(Backoff, "pause", lambda self: pytest.fail("paused"))
    wait_until(lambda: True)


def test_an_error_of_the_condition_ends_the_wait():
    def unwell():
        raise KeyError("unwell")

    with pytest.raises(KeyError):
        wait_until(unwell)
