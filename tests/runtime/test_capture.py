"""Captures that fail, without CUDA: the allocator learns of their end, and the error that is raised is the cause."""

import contextlib
import gc

import pytest
import torch

from hotrows.runtime import capture, cuda_private
from hotrows.runtime.capture import GraphCapture

DEVICE, POOL = torch.device("cuda", 0), (0, 7)


class FakeStream:
    def __init__(self, device, priority=0):
        pass


class FakeEvent:
    def record(self, stream):
        pass

    def synchronize(self):
        pass


class FakeGraph:
    """As in PyTorch, `capture_end` of a capture that was invalidated raises before it tells the allocator."""

    is_invalidated = False

    def __init__(self, allocator, keep_graph):
        self.allocator = allocator

    def capture_begin(self, pool, capture_error_mode):
        assert pool not in self.allocator, "already recording to this pool"
        self.allocator.append(pool)

    def capture_end(self):
        if self.is_invalidated:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.allocator.remove(POOL)

    def instantiate(self):
        pass


@pytest.fixture
def allocator(monkeypatch):
    """The pools into which the allocator takes a capture to be under way."""
    open_pools = []

    def end_allocation(device, pool):
        assert device == DEVICE
        open_pools.remove(pool)

    monkeypatch.setattr(cuda_private, "end_allocation_to_pool", end_allocation)
    monkeypatch.setattr(capture, "replace_memsets", lambda graph, stream: 0)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda keep_graph: FakeGraph(open_pools, keep_graph))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return open_pools


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("is_invalidated", [False, True])
def test_every_capture_ends(raises, is_invalidated, allocator):
    captures = GraphCapture(DEVICE)

    def capture_one():
        with captures.capture() as graph:
            assert allocator == [POOL]
            assert not gc.isenabled()
            graph.is_invalidated = is_invalidated  # by an error that the block hides, unless `raises`
            if raises:
                raise KeyError("in the block")

    if raises:
        with pytest.raises(KeyError, match="in the block"):
            capture_one()
    elif is_invalidated:
        with pytest.raises(RuntimeError, match="previous error"):
            capture_one()
    else:
        capture_one()
    assert allocator == []
    assert gc.isenabled()
    with captures.capture():  # into the same pool
        pass
    assert allocator == []
