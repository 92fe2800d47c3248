"""Prepare items ahead of their use, in background threads."""

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

from paceline.errors import ConfigError

T = TypeVar("T")
Items = Iterable[T] | Callable[[], Iterable[T]]
Prepare = Callable[[Any], T]

THREAD_NAME = "paceline-prefetch"
JOIN_TIMEOUT_S = 5.0
ITEM, ERROR, END = "item", "error", "end"
GO, STOP = True, False


def prefetched(
    items: Items[Any], depth: int, loaders: int = 1, prepare: Prepare[T] | None = None
) -> Iterator[T]:
    """Iterate over items while threads prepare up to `depth` of them ahead.

    Items are read one after the other. `prepare` is applied to each of them, in as many threads as
    there are `loaders`; results come in the order of the items, whichever thread was first. An
    exception is raised after the items that came before it. The threads start with the first item
    asked for, and end when the items do, or when the iterator is closed or dropped. With depth 0
    there is no thread.
    """
    check_loading(depth, loaders)
    if depth == 0:
        return iter(_start(items)) if prepare is None else _prepare_each(items, prepare)
    return _consume(items, depth, loaders, prepare or _as_it_is)


def check_loading(depth: int, loaders: int) -> None:
    """Refuse loaders that could never have anything to do."""
    if depth < 0:
        raise ConfigError(f"prefetch is {depth}, expected 0 (off) or the number of batches ahead")
    if loaders < 1:
        raise ConfigError(f"loaders is {loaders}, expected 1 or more")
    if loaders > max(1, depth):
        raise ConfigError(
            f"{loaders} loaders, and prefetch is {depth}: no more of them could work at once. Set "
            f"prefetch to {loaders} or more, or omit it"
        )


def _consume(items: Items[Any], depth: int, loaders: int, prepare: Prepare[T]) -> Iterator[T]:
    pool = _Pool(items, depth, loaders, prepare)
    threads = [
        threading.Thread(target=pool.work, name=THREAD_NAME, daemon=True) for _ in range(loaders)
    ]
    for thread in threads:
        thread.start()
    try:
        while True:
            kind, value = pool.order.get().get()
            if kind == ERROR:
                raise value
            if kind == END:
                return
            pool.places.put(GO)
            yield value
            del value
    finally:
        pool.stop()
        # The garbage collector may close this generator from within a loader itself. An item
        # that never comes must not hold up the caller: the daemon thread is then left behind.
        deadline = monotonic() + JOIN_TIMEOUT_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - monotonic()))


class _Pool:
    """What the loader threads share.

    In turn, each takes the next item and at once puts a promise of its result into `order`: so the
    promises are in the order of the items, and the next one is always being worked on. The consumer
    uses SimpleQueue alone, since the garbage collector may run its cleanup at any time.
    """

    def __init__(self, items: Items[Any], depth: int, loaders: int, prepare: Prepare[Any]) -> None:
        self.order: SimpleQueue[SimpleQueue[tuple[str, Any]]] = SimpleQueue()
        self.places: SimpleQueue[bool] = SimpleQueue()
        for _ in range(depth):
            self.places.put(GO)
        self._items, self._prepare = items, prepare
        self._iterator: Iterator[Any] | None = None
        self._turn = threading.Lock()
        self._at_work = loaders
        self._stopped = False

    def stop(self) -> None:
        """Let every loader end after the item it has in hand."""
        self._stopped = True
        for _ in range(self._at_work):
            self.places.put(STOP)

    def work(self) -> None:
        """A loader, until there are no more items."""
        try:
            # A place first, the item then: at most `depth` items exist beside the one in use.
            while self.places.get() is GO and self._load():
                pass
        finally:
            with self._turn:
                self._at_work -= 1
                if not self._at_work:
                    _close(self._iterator)

    def _load(self) -> bool:
        """Prepare the next item; False if there is none."""
        promise: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        with self._turn:
            if self._stopped:
                return False
            kind, value = self._next()
            self._stopped = self._stopped or kind != ITEM
            self.order.put(promise)
        if kind == ITEM:
            try:
                value = self._prepare(value)
            except BaseException as error:
                kind, value = ERROR, error
        promise.put((kind, value))
        return kind == ITEM

    def _next(self) -> tuple[str, Any]:
        try:
            if self._iterator is None:
                self._iterator = iter(_start(self._items))
            return ITEM, next(self._iterator)
        except StopIteration:
            return END, None
        except BaseException as error:
            return ERROR, error


def _as_it_is(item: T) -> T:
    return item


def _prepare_each(items: Items[Any], prepare: Prepare[T]) -> Iterator[T]:
    for item in _start(items):
        yield prepare(item)


def _start(items: Items[T]) -> Iterable[T]:
    return items() if callable(items) else items


def _close(iterator: Iterator[Any] | None) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
