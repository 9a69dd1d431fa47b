"""Items made ahead in threads: the same, in order, and in a thread where that pays."""

import threading
import time
from collections.abc import Iterator

import pytest

from hotrows.data.read_ahead import ENOUGH, SETTLING, TRIED, VERY_SLOW, iterate_ahead, iterate_ahead_if_slow

FIRST = SETTLING + TRIED  # these tell where the others are made


def makers(num: int, seconds: float) -> Iterator[tuple[int, int]]:
    """Numbers, and the thread that made each."""
    for i in range(num):
        time.sleep(seconds)
        yield i, threading.get_ident()


@pytest.mark.parametrize("num", [0, 1, FIRST - 1, FIRST, FIRST + 1, 2 * FIRST])
@pytest.mark.parametrize("seconds", [0.0, 0.001])
def test_the_same_items_in_order(num: int, seconds: float) -> None:
    assert [i for i, _ in iterate_ahead_if_slow(makers(num, seconds))] == list(range(num))


@pytest.mark.parametrize(("seconds", "num_tried"), [(0.0005, TRIED), (2 * VERY_SLOW, ENOUGH)])
def test_slow_items_come_from_a_thread(seconds: float, num_tried: int) -> None:
    here = threading.get_ident()
    made = [thread for _, thread in iterate_ahead_if_slow(makers(FIRST + 20, seconds))]
    assert [i for i, thread in enumerate(made) if thread == here] == list(range(SETTLING, SETTLING + num_tried))


def test_items_that_are_slow_now_and_then_come_from_a_thread() -> None:
    """As where several batches are read at once."""
    here = threading.get_ident()

    def made() -> Iterator[int]:
        for i in range(2 * FIRST):
            time.sleep(0 if i % 4 else 2 * VERY_SLOW)
            yield threading.get_ident()

    assert here not in list(iterate_ahead_if_slow(made()))[FIRST:]


def test_fast_items_do_not() -> None:
    here = threading.get_ident()
    made = list(iterate_ahead_if_slow(threading.get_ident() for _ in range(2 * FIRST)))
    assert here not in made[:SETTLING]
    assert set(made[SETTLING:]) == {here}


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
