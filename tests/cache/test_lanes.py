"""Lanes on the CPU: order, waiting, and what happens when a job fails."""

import gc
import threading
import time

import pytest
import torch

from hotrows.cache.lanes import ThreadLane, caller_mark


def test_jobs_run_in_order_in_another_thread() -> None:
    lane = ThreadLane("test")
    done: list[int] = []
    threads = set()

    def job(number: int) -> None:
        time.sleep(0.001 * (5 - number))
        done.append(number)
        threads.add(threading.current_thread())

    marks = [lane.submit(lambda number=number: job(number)) for number in range(5)]
    assert not marks[-1].passed()
    marks[-1].wait()
    assert done == [0, 1, 2, 3, 4]
    assert threads != {threading.current_thread()}


def test_a_job_waits_for_other_lanes() -> None:
    slow, fast = ThreadLane("slow"), ThreadLane("fast")
    done: list[str] = []
    first = slow.submit(lambda: (time.sleep(0.02), done.append("slow"))[0])
    fast.submit(lambda: done.append("fast"), after=[first, caller_mark(torch.device("cpu"))]).wait()
    assert done == ["slow", "fast"]


def test_after_a_failure_nothing_more_is_done_and_everyone_is_told() -> None:
    lane = ThreadLane("test")
    done: list[int] = []

    def fail() -> None:
        raise OSError("disk full")

    first = lane.submit(fail)
    second = lane.submit(lambda: done.append(1))
    for mark in (first, second):
        with pytest.raises(RuntimeError, match="moving rows failed") as caught:
            mark.hold_caller()
        assert isinstance(caught.value.__cause__, OSError)
    assert done == []


def test_the_thread_ends_with_its_lane() -> None:
    before = set(threading.enumerate())
    lane = ThreadLane("test")
    lane.submit(lambda: None).wait()
    started = set(threading.enumerate()) - before
    assert started
    del lane
    gc.collect()
    for thread in started:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in started)
