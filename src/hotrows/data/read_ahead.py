"""Results of a function for a sequence of items, computed ahead in threads."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from statistics import median
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_END = object()
HANDOFF_SECONDS = 150e-6  # to pass an item from thread to thread, including the wait for Python's global lock
NUM_WARMUP = 64  # first items, which may be slow because memory is allocated for them
NUM_TIMED = 16  # items after the warm-up that are timed
VERY_SLOW_SECONDS, NUM_VERY_SLOW = 10 * HANDOFF_SECONDS, 3  # this many items that take this long end the timing early


def read_ahead(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Like `map`, in order. At most `threads` + 1 results are being computed or held.

    An exception of the function is raised in place of its result. The threads end with the iterator.
    """
    remaining = iter(items)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="hotrows-loader")
    try:
        in_flight: deque[Future[Result]] = deque(pool.submit(function, item) for item in islice(remaining, threads + 1))
        while in_flight:
            result = in_flight.popleft().result()
            in_flight.extend(pool.submit(function, item) for item in islice(remaining, 1))
            yield result
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def iterate_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items; a thread takes them from the iterable, up to two ahead."""
    source = iter(items)
    for item in read_ahead(lambda _: next(source, _END), count(), 1):
        if item is _END:
            return
        yield item  # type: ignore[misc]


def iterate_ahead_if_slow(items: Iterable[Item]) -> Iterator[Item]:
    """The same items, taken by a thread if making an item takes longer than passing it to another thread.

    A thread takes the first items. The next few are taken here and timed, to decide about the others.
    """
    source = iter(items)
    for item in read_ahead(lambda _: next(source, _END), range(NUM_WARMUP), 1):
        if item is _END:
            return
        yield item  # type: ignore[misc]
    times: list[float] = []
    num_very_slow = 0
    while len(times) < NUM_TIMED and num_very_slow < NUM_VERY_SLOW:
        began = time.perf_counter()
        try:
            item = next(source)
        except StopIteration:
            return
        times.append(time.perf_counter() - began)
        num_very_slow += times[-1] > VERY_SLOW_SECONDS
        yield item
    is_slow = num_very_slow >= NUM_VERY_SLOW or median(times) > HANDOFF_SECONDS
    yield from iterate_ahead(source) if is_slow else source
