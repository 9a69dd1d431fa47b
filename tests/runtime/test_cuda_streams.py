"""CUDA streams and events with fakes: which stream is current, what waits for what, and which events are reused."""

import pytest
import torch

from hotrows.runtime import cuda_private, streams

CUDA = torch.device("cuda", 0)


class Event:
    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.is_complete = False

    def record(self, stream) -> None:
        self.log.append(("record", stream.stream_id))

    def wait(self, stream) -> None:
        self.log.append(("wait", stream.stream_id))

    def query(self) -> bool:
        return self.is_complete

    def synchronize(self) -> None:
        self.log.append(("synchronize", 0))


class Stream:
    device, device_index, device_type = CUDA, 0, 1

    def __init__(self, device=None, priority=0, stream_id=7) -> None:
        self.stream_id = stream_id


@pytest.fixture
def current(monkeypatch) -> dict[str, int]:
    """The current device and its current stream."""
    now = {"device": 0, "stream": 0}
    monkeypatch.setattr(cuda_private, "SAFE", False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(streams, "_event_pools", {})
    for name, fake in {
        "_cuda_getDevice": lambda: now["device"],
        "_cuda_getCurrentStream": lambda index: (now["stream"], index, 1),
        "_cuda_setStream": lambda stream, index, kind: now.update(stream=stream, device=index),
    }.items():
        monkeypatch.setattr(torch._C, name, fake, raising=False)
    return now


def test_replays_run_in_the_stream_behind_events(current):
    stream, seen = streams.CudaWorkStream(CUDA), []
    before = streams.CudaEvent(Stream(stream_id=3))
    complete = streams.CudaEvent(Stream(stream_id=3))
    complete._event.is_complete = True
    assert complete.query()
    after = (before, complete, streams.CompletedEvent())
    event = stream.submit(lambda: seen.append(current["stream"]), after, replays_graph=True)
    assert seen == [7]
    assert current == {"device": 0, "stream": 0}
    assert before._event.log == [("record", 3), ("wait", 7)]
    assert complete._event.log == [("record", 3)], "nothing waits for an event that is known to be complete"
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


@pytest.mark.parametrize("reason", ["another device is current", "private calls are switched off"])
def test_otherwise_pytorch_sets_the_stream(reason, current, monkeypatch):
    stream, calls = streams.CudaWorkStream(CUDA), []
    monkeypatch.setattr(cuda_private, "SAFE", reason == "private calls are switched off")
    current["device"] = device = int(reason == "another device is current")
    monkeypatch.setattr(stream, "_submit_anything", lambda work, after: calls.append((work, after)))
    stream.submit(print, (), replays_graph=True)
    assert calls == [(print, ())]
    assert current == {"device": device, "stream": 0}


def test_events_are_reused_once_nobody_holds_them(current):
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


def test_an_event_that_is_recorded_again_is_not_complete(current):
    event = streams.CudaEvent(Stream())
    event.synchronize()
    assert event.query()
    event.record_again(Stream(stream_id=4))
    assert not event.query()
    event.wait(Stream(stream_id=5))
    assert event._event.log == [("record", 7), ("synchronize", 0), ("record", 4), ("wait", 5)]
