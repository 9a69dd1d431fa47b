"""Items made ahead in threads: the same, in order, and in a thread where that pays."""

import threading
import time
from collections.abc import Iterator

import pytest

from hotrows.data.read_ahead import SETTLING, TRIED, iterate_ahead, iterate_ahead_if_slow

FIRST = SETTLING + TRIED  # that are made here


def makers(num: int, seconds: float) -> Iterator[tuple[int, int]]:
    """Numbers, and the thread that made each."""
    for i in range(num):
        time.sleep(seconds)
        yield i, threading.get_ident()


@pytest.mark.parametrize("num", [0, 1, FIRST - 1, FIRST, FIRST + 1, 2 * FIRST])
@pytest.mark.parametrize("seconds", [0.0, 0.001])
def test_the_same_items_in_order(num: int, seconds: float) -> None:
    assert [i for i, _ in iterate_ahead_if_slow(makers(num, seconds))] == list(range(num))


def test_slow_items_come_from_a_thread_and_fast_ones_do_not() -> None:
    here = threading.get_ident()
    slow = [thread for _, thread in iterate_ahead_if_slow(makers(FIRST + 20, 0.001))]
    assert slow[:FIRST] == [here] * FIRST
    assert here not in slow[FIRST:]
    fast = iterate_ahead_if_slow(threading.get_ident() for _ in range(2 * FIRST))
    assert set(fast) == {here}


@pytest.mark.parametrize("at", [3, FIRST + 5])
@pytest.mark.parametrize("seconds", [0.0, 0.001])
def test_what_goes_wrong_is_raised_where_it_was_due(at: int, seconds: float) -> None:
    def failing() -> Iterator[int]:
        for i, _ in makers(at, seconds):
            yield i
        raise ValueError("a broken shard")

    items = iterate_ahead_if_slow(failing())
    assert [next(items) for _ in range(at)] == list(range(at))
    with pytest.raises(ValueError, match="a broken shard"):
        next(items)


def test_the_thread_ends_with_the_iterator() -> None:
    before = threading.active_count()
    items = iterate_ahead(i for i in range(1_000_000))
    assert next(items) == 0
    items.close()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before
