"""Results of a function for one item after the other, worked out ahead in threads."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_END = object()


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
