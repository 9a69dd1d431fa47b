"""Results of a function for one item after the other, worked out ahead in threads."""

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
HANDING_OVER = 150e-6  # seconds that an item takes from thread to thread, Python's lock included
SETTLING = 64  # items that may be slow because memory is made for them
TRIED = 16  # items after these whose times tell whether a thread is worth it
VERY_SLOW, ENOUGH = 10 * HANDING_OVER, 3  # so many of them that take so long are enough to tell


def read_ahead(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Like `map`, in order. At most one result more than there are threads is under way or waits.

    What the function raises is raised where its result was due. The threads end with the iterator.
    """
    todo = iter(items)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="hotrows-loader")
    try:
        under_way: deque[Future[Result]] = deque(pool.submit(function, item) for item in islice(todo, threads + 1))
        while under_way:
            result = under_way.popleft().result()
            under_way.extend(pool.submit(function, item) for item in islice(todo, 1))
            yield result
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def iterate_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items, each taken from where they come in a thread, two of them ahead."""
    source = iter(items)
    for item in read_ahead(lambda _: next(source, _END), count(), 1):
        if item is _END:
            return
        yield item  # type: ignore[misc]


def iterate_ahead_if_slow(items: Iterable[Item]) -> Iterator[Item]:
    """The same items, from a thread where each takes longer to make than to hand over.

    The first ones come from a thread, and a few after them are made here and timed, which tells.
    """
    source = iter(items)
    for item in read_ahead(lambda _: next(source, _END), range(SETTLING), 1):
        if item is _END:
            return
        yield item  # type: ignore[misc]
    took: list[float] = []
    num_very_slow = 0
    while len(took) < TRIED and num_very_slow < ENOUGH:
        began = time.perf_counter()
        try:
            item = next(source)
        except StopIteration:
            return
        took.append(time.perf_counter() - began)
        num_very_slow += took[-1] > VERY_SLOW
        yield item
    is_slow = num_very_slow >= ENOUGH or median(took) > HANDING_OVER
    yield from iterate_ahead(source) if is_slow else source
