"""The background thread: same items, same errors, and gone when it should be."""

import gc
import itertools
import threading

import pytest

from paceline.data import prefetched
from paceline.data.sampling.prefetch import THREAD_NAME
from paceline.errors import ConfigError


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    if threads():
        gc.collect()
    assert threads() == []


@pytest.mark.parametrize("depth", [0, 1, 2, 100])
def test_items_come_in_order_from_iterables_and_functions(depth):
    assert list(prefetched(range(20), depth)) == list(range(20))
    assert list(prefetched(lambda: iter(range(20)), depth)) == list(range(20))
    assert list(prefetched([], depth)) == []


def test_depth_zero_starts_no_thread():
    items = prefetched(itertools.count(), 0)
    assert next(items) == 0
    assert threads() == []


def test_no_thread_starts_before_the_first_item_is_asked_for():
    items = prefetched(itertools.count(), 2)
    assert threads() == []
    assert next(items) == 0
    assert len(threads()) == 1
    items.close()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_an_error_comes_after_the_items_before_it(depth):
    def broken():
        yield 1
        yield 2
        raise OSError("disk on fire")

    items = prefetched(broken, depth)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(OSError, match="disk on fire"):
        next(items)
    assert list(items) == []


@pytest.mark.parametrize("depth", [0, 1])
def test_an_error_of_the_function_itself_is_raised(depth):
    def broken():
        raise ValueError("no data today")

    with pytest.raises(ValueError, match="no data today"):
        list(prefetched(broken, depth))


def test_at_most_depth_items_are_prepared_ahead():
    made: list[int] = []
    full = threading.Event()

    def source():
        for number in itertools.count():
            made.append(number)
            if len(made) == 4:
                full.set()
            yield number

    items = prefetched(source, 3)
    assert next(items) == 0
    assert full.wait(10)
    (thread,) = threads()
    # Blocked for want of a place, it cannot end by itself: the join runs into its time limit.
    thread.join(0.2)
    assert made == [0, 1, 2, 3]
    items.close()


@pytest.mark.parametrize("end", ["close", "del"])
def test_an_iterator_given_up_early_ends_its_thread_and_closes_its_source(end):
    closed = threading.Event()

    def source():
        try:
            yield from itertools.count()
        finally:
            closed.set()

    items = prefetched(source, 2)
    assert next(items) == 0
    (thread,) = threads()
    if end == "close":
        items.close()
    else:
        del items
    assert not thread.is_alive()
    assert closed.is_set()


@pytest.mark.parametrize("depth", [0, 2])
def test_closing_closes_an_iterator_that_others_hold_too(depth):
    source = (number for number in itertools.count())
    items = prefetched(source, depth)
    assert next(items) == 0
    items.close()
    assert list(source) == []


def test_a_loop_left_by_an_exception_ends_the_thread():
    def loop():
        for _ in prefetched(itertools.count(), 2):
            raise KeyError("loss")

    with pytest.raises(KeyError):
        loop()
    assert threads() == []


def test_a_negative_depth_is_refused():
    with pytest.raises(ConfigError, match="prefetch is -1"):
        prefetched([], -1)
