"""Prepare items ahead of their use, in a background thread."""

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

from paceline.errors import ConfigError

T = TypeVar("T")

THREAD_NAME = "paceline-prefetch"
JOIN_TIMEOUT_S = 5.0
ITEM, ERROR, END = "item", "error", "end"


def prefetched(items: Iterable[T] | Callable[[], Iterable[T]], depth: int) -> Iterator[T]:
    """Iterate over items while a thread prepares up to `depth` of them ahead.

    An exception of the producer is raised after the items that came before it. The thread starts
    with the first item asked for, and ends when the items do, or when the iterator is closed or
    dropped. With depth 0 there is no thread.
    """
    if depth < 0:
        raise ConfigError(f"prefetch is {depth}, expected 0 (off) or the number of batches ahead")
    if depth == 0:
        return iter(_start(items))
    return _consume(items, depth)


def _consume(items: Iterable[T] | Callable[[], Iterable[T]], depth: int) -> Iterator[T]:
    ready: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    free = threading.Semaphore(depth)
    stop = threading.Event()
    thread = threading.Thread(
        target=_produce, args=(items, ready, free, stop), name=THREAD_NAME, daemon=True
    )
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == ERROR:
                raise value
            if kind == END:
                return
            free.release()
            yield value
            del value
    finally:
        stop.set()
        free.release()
        # The garbage collector may close this generator from within the producer itself. An
        # item that never comes must not hold up whoever closes: the daemon is left behind then.
        if thread is not threading.current_thread():
            thread.join(JOIN_TIMEOUT_S)


def _produce(
    items: Iterable[Any] | Callable[[], Iterable[Any]],
    ready: SimpleQueue[tuple[str, Any]],
    free: threading.Semaphore,
    stop: threading.Event,
) -> None:
    iterator: Iterator[Any] = iter(())
    try:
        iterator = iter(_start(items))
        while True:
            # A place first, the item then: at most `depth` items exist beside the one in use.
            free.acquire()
            if stop.is_set():
                return
            try:
                item = next(iterator)
            except StopIteration:
                ready.put((END, None))
                return
            ready.put((ITEM, item))
            del item
    except BaseException as error:
        ready.put((ERROR, error))
    finally:
        _close(iterator)


def _start(items: Iterable[T] | Callable[[], Iterable[T]]) -> Iterable[T]:
    return items() if callable(items) else items


def _close(iterator: Iterator[Any]) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
