"""Items that are read ahead in threads: they are the same, in order, and slow ones are made in a thread."""

import threading
from collections.abc import Iterable, Iterator

import pytest

from hotrows.data import read_ahead
from hotrows.data.read_ahead import (
    HANDOFF_SECONDS,
    NUM_TIMED,
    NUM_VERY_SLOW,
    NUM_WARMUP,
    VERY_SLOW_SECONDS,
    iterate_ahead,
    iterate_ahead_if_slow,
)

FIRST = NUM_WARMUP + NUM_TIMED  # these items decide where the others are made


class Clock:
    """A clock that advances only when an item is made, so that the load of the machine has no effect."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(read_ahead, "time", made)
    return made


def makers(seconds: Iterable[float], clock: Clock) -> Iterator[tuple[int, int]]:
    """Yield numbers, each with the thread that made it."""
    for i, taken in enumerate(seconds):
        clock.now += taken
        yield i, threading.get_ident()


def made_here(seconds: Iterable[float], clock: Clock) -> list[int]:
    here = threading.get_ident()
    return [i for i, thread in iterate_ahead_if_slow(makers(seconds, clock)) if thread == here]


@pytest.mark.parametrize("num", [0, 1, FIRST - 1, FIRST, FIRST + 1, 2 * FIRST])
@pytest.mark.parametrize("seconds", [0.0, 0.001])
def test_the_same_items_in_order(num: int, seconds: float, clock: Clock) -> None:
    assert [i for i, _ in iterate_ahead_if_slow(makers(num * [seconds], clock))] == list(range(num))


@pytest.mark.parametrize(
    ("seconds", "num_timed"),
    [(1.01 * HANDOFF_SECONDS, NUM_TIMED), (0.0005, NUM_TIMED), (2 * VERY_SLOW_SECONDS, NUM_VERY_SLOW)],
)
def test_slow_items_come_from_a_thread(seconds: float, num_timed: int, clock: Clock) -> None:
    assert made_here((FIRST + 20) * [seconds], clock) == list(range(NUM_WARMUP, NUM_WARMUP + num_timed))


def test_items_that_are_slow_now_and_then_come_from_a_thread(clock: Clock) -> None:
    """A loader that reads several batches at once has such items."""
    seconds = [0.0 if i % 4 else 2 * VERY_SLOW_SECONDS for i in range(2 * FIRST)]
    assert max(made_here(seconds, clock)) < FIRST


@pytest.mark.parametrize("seconds", [0.0, 0.99 * HANDOFF_SECONDS])
def test_fast_items_do_not(seconds: float, clock: Clock) -> None:
    assert made_here(2 * FIRST * [seconds], clock) == list(range(NUM_WARMUP, 2 * FIRST))


@pytest.mark.parametrize("at", [3, FIRST + 5])
@pytest.mark.parametrize("seconds", [0.0, 0.001])
def test_an_error_is_raised_in_place_of_its_item(at: int, seconds: float, clock: Clock) -> None:
    def failing() -> Iterator[int]:
        for i, _ in makers(at * [seconds], clock):
            yield i
        raise ValueError("a broken shard")

    items = iterate_ahead_if_slow(failing())
    assert [next(items) for _ in range(at)] == list(range(at))
    with pytest.raises(ValueError, match="a broken shard"):
        next(items)


def test_the_thread_ends_with_the_iterator() -> None:
    before = set(threading.enumerate())  # threads of an earlier test may still be ending
    items = iterate_ahead(i for i in range(1_000_000))
    assert next(items) == 0
    started = set(threading.enumerate()) - before
    assert started
    items.close()
    for thread in started:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in started)
