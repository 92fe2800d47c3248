"""Buckets on their way, and the thread that takes them."""

import threading

import pytest

from paceline.core.vectors import Layout
from paceline.sync.synchronous.overlap_sender import OverlapSender, cut_buckets

BUCKETS = cut_buckets(Layout.of([(name, (16,), "float32") for name in "abcd"]), 100)


@pytest.mark.parametrize("threaded", [True, False])
def test_all_buckets_are_taken_in_order_round_after_round(threaded):
    taken = []
    courier = OverlapSender(BUCKETS, taken.append, threaded)
    for _ in range(3):
        courier.hand_in_rest()
        courier.wait_for(0)
        assert taken[0] == 0
        courier.finish()
        assert taken == [0, 1]
        taken.clear()
    courier.close()


def test_who_waits_for_a_bucket_does_not_wait_for_later_ones():
    late = threading.Event()
    taken = []

    def take(number):
        assert number == 0 or late.wait(20)
        taken.append(number)

    courier = OverlapSender(BUCKETS, take, threaded=True)
    courier.hand_in_rest()
    courier.wait_for(0)
    assert taken == [0]
    late.set()
    courier.finish()
    assert taken == [0, 1]
    courier.close()


@pytest.mark.parametrize("threaded", [True, False])
def test_a_bucket_that_cannot_be_summed_is_an_error_of_who_waits(threaded):
    def take(number):
        raise KeyError("lost")

    courier = OverlapSender(BUCKETS, take, threaded)
    courier.hand_in_rest()
    with pytest.raises(KeyError, match="lost"):
        courier.wait_for(1)
    courier.close()
