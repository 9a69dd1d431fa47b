"""Streams on the CPU: order, waiting, and what happens when a job fails."""

import gc
import threading
import time

import pytest
import torch

from hotrows.runtime.streams import ThreadStream, record_event


def test_jobs_run_in_order_in_another_thread() -> None:
    stream = ThreadStream("test")
    done: list[int] = []
    threads = set()

    def job(number: int) -> None:
        time.sleep(0.001 * (5 - number))
        done.append(number)
        threads.add(threading.current_thread())

    events = [stream.submit(lambda number=number: job(number)) for number in range(5)]
    assert not events[-1].query()
    events[-1].wait()
    assert done == [0, 1, 2, 3, 4]
    assert threads != {threading.current_thread()}


def test_a_job_waits_for_other_streams() -> None:
    slow, fast = ThreadStream("slow"), ThreadStream("fast")
    done: list[str] = []
    first = slow.submit(lambda: (time.sleep(0.02), done.append("slow"))[0])
    fast.submit(lambda: done.append("fast"), after=[first, record_event(torch.device("cpu"))]).wait()
    assert done == ["slow", "fast"]


def test_after_a_failure_nothing_more_runs_and_every_event_raises() -> None:
    stream = ThreadStream("test")
    done: list[int] = []

    def fail() -> None:
        raise OSError("disk full")

    first = stream.submit(fail)
    second = stream.submit(lambda: done.append(1))
    for event in (first, second):
        with pytest.raises(RuntimeError, match="moving rows failed") as caught:
            event.wait()
        assert isinstance(caught.value.__cause__, OSError)
    assert done == []


def test_the_thread_ends_with_its_stream() -> None:
    before = set(threading.enumerate())
    stream = ThreadStream("test")
    stream.submit(lambda: None).wait()
    started = set(threading.enumerate()) - before
    assert started
    del stream
    gc.collect()
    for thread in started:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in started)
