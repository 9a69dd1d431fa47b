"""Streams and events by stand-ins: whose stream is current, what waits for what, and which events are used again."""

import pytest
import torch

from hotrows.runtime import streams

CUDA = torch.device("cuda", 0)


class Event:
    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.is_past = False

    def record(self, stream) -> None:
        self.log.append(("record", stream.stream_id))

    def wait(self, stream) -> None:
        self.log.append(("wait", stream.stream_id))

    def query(self) -> bool:
        return self.is_past

    def synchronize(self) -> None:
        self.log.append(("synchronize", 0))


class Stream:
    device, device_index, device_type = CUDA, 0, 1

    def __init__(self, device=None, priority=0, stream_id=7) -> None:
        self.stream_id = stream_id


@pytest.fixture
def current(monkeypatch) -> dict[str, int]:
    """The current device, and its current stream."""
    now = {"device": 0, "stream": 0}
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(streams, "_spare_events", {})
    for name, stand_in in {
        "_cuda_getDevice": lambda: now["device"],
        "_cuda_getCurrentStream": lambda index: (now["stream"], index, 1),
        "_cuda_setStream": lambda stream, index, kind: now.update(stream=stream, device=index),
    }.items():
        monkeypatch.setattr(torch._C, name, stand_in, raising=False)
    return now


def test_recorded_work_runs_in_the_stream_behind_marks(current):
    stream, seen = streams.CudaWorkStream(CUDA), []
    before = streams.CudaEvent(Stream(stream_id=3))
    past = streams.CudaEvent(Stream(stream_id=3))
    past._event.is_past = True
    assert past.query()
    event = stream.submit(
        lambda: seen.append(current["stream"]), (before, past, streams.CompletedEvent()), replays_graph=True
    )
    assert seen == [7]
    assert current == {"device": 0, "stream": 0}
    assert before._event.log == [("record", 3), ("wait", 7)]
    assert past._event.log == [("record", 3)], "what is known to have passed is not waited for"
    assert event._event.log == [("record", 7)]


def test_the_stream_is_set_back_after_an_error(current):
    stream = streams.CudaWorkStream(CUDA)
    current["stream"] = 5

    def fail() -> None:
        assert current["stream"] == 7
        raise OSError("out of memory")

    with pytest.raises(OSError, match="out of memory"):
        stream.submit(fail, replays_graph=True)
    assert current == {"device": 0, "stream": 5}


def test_with_another_device_current_pytorch_sets_the_stream(current, monkeypatch):
    stream, calls = streams.CudaWorkStream(CUDA), []
    current["device"] = 1
    monkeypatch.setattr(stream, "_submit_anything", lambda work, after: calls.append((work, after)))
    stream.submit(print, (), replays_graph=True)
    assert calls == [(print, ())]
    assert current == {"device": 1, "stream": 0}


def test_events_are_used_again_once_nobody_has_their_mark(current):
    stream = streams.CudaWorkStream(CUDA)
    first = stream.submit(lambda: None, replays_graph=True)
    second = stream.submit(lambda: None, replays_graph=True)
    event = first._event
    assert second._event is not event
    del first
    third = stream.submit(lambda: None, replays_graph=True)
    assert third._event is event
    assert not third.query()
    assert event.log == [("record", 7), ("record", 7)]


def test_a_mark_that_is_renewed_has_not_passed(current):
    event = streams.CudaEvent(Stream())
    event.wait()
    assert event.query()
    event.record_again(Stream(stream_id=4))
    assert not event.query()
    event.wait(Stream(stream_id=5))
    assert event._event.log == [("record", 7), ("synchronize", 0), ("record", 4), ("wait", 5)]
