"""Memsets of captured graphs as kernels: the same bytes between the same kernels, and no memset nodes."""

import ctypes

import pytest
import torch

from hotrows.runtime import cuda_private, memset_nodes
from hotrows.runtime.capture import GraphCapture
from hotrows.runtime.cuda_private import GraphNodes

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)


def set_bytes(tensor, num, value, element_size=1):
    """The driver's own memset, in the current stream."""
    driver = ctypes.CDLL("libcuda.so.1")
    call = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}[element_size]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    error = call(ctypes.c_uint64(tensor.data_ptr()), ctypes.c_uint(value), ctypes.c_size_t(num), stream)
    assert error == 0


def count(graph, kind=GraphNodes.MEMSET):
    return len(cuda_private.graph_nodes().of_kind(graph.raw_cuda_graph(), kind))


@pytest.mark.parametrize(
    ("element_size", "value"), [(1, 0), (1, 0xFF), (2, 0x8001), (4, 0), (4, 0xFFFFFFFF), (4, 0x12345678)]
)
def test_sets_the_same_bytes_between_the_same_kernels(element_size, value):
    num = 24 // element_size
    wanted = bytearray(b"\x07" * 32)
    wanted[:24] = value.to_bytes(element_size, "little") * num
    memory, seen, other = (torch.zeros(32, dtype=torch.uint8, device=DEVICE) for _ in range(3))
    side = torch.cuda.Stream(DEVICE)
    with GraphCapture(DEVICE, -5).capture() as graph:
        memory.fill_(7)
        set_bytes(memory, num, value, element_size)
        filled = torch.cuda.current_stream().record_event()
        seen.copy_(memory + 0)
        with torch.cuda.stream(side):  # two nodes wait for the memset
            side.wait_event(filled)
            other.copy_(memory + 1)
        torch.cuda.current_stream().wait_stream(side)
        memory.fill_(9)
    assert count(graph) == 0
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert bytes(seen.tolist()) == bytes(wanted)
    assert bytes(other.tolist()) == bytes((byte + 1) % 256 for byte in wanted)
    assert memory.eq(9).all()


def test_first_and_last_of_a_graph():
    memory = torch.ones(16, dtype=torch.int32, device=DEVICE)
    with GraphCapture(DEVICE).capture() as graph:
        set_bytes(memory, 4, 5, 4)
        set_bytes(memory[8:], 4, 6, 4)
    assert count(graph) == 0
    assert count(graph, GraphNodes.KERNEL) == 2
    memory.fill_(1)
    graph.replay()
    assert memory.tolist() == [5] * 4 + [1] * 4 + [6] * 4 + [1] * 4


def test_large_memsets_stay():
    memory = torch.ones(memset_nodes.MAX_BYTES + 4, dtype=torch.uint8, device=DEVICE)
    with GraphCapture(DEVICE).capture() as graph:
        set_bytes(memory, memory.numel(), 3)
    assert count(graph) == 1
    graph.replay()
    assert memory.eq(3).all()


@pytest.mark.parametrize("reason", ["the driver has no such call", "private calls are switched off"])
def test_memsets_stay_otherwise(reason, monkeypatch):
    if reason == "private calls are switched off":
        monkeypatch.setattr(cuda_private, "SAFE", True)
    else:
        monkeypatch.setattr(cuda_private, "_graph_nodes", lambda: None)
    memory = torch.ones(8, dtype=torch.uint8, device=DEVICE)
    with GraphCapture(DEVICE).capture() as graph:
        set_bytes(memory, 8, 3)
    graph.replay()
    assert memory.eq(3).all()


def test_a_sort_has_memsets_and_sorts():
    keys = torch.randint(1000, (100_000,), dtype=torch.int32, device=DEVICE)
    with GraphCapture(DEVICE).capture() as graph:
        values, order = torch.sort(keys, stable=True)
    for _ in range(3):
        keys.random_(1000)
        graph.replay()
        expected = torch.sort(keys, stable=True)
        assert values.equal(expected.values)
        assert order.equal(expected.indices)
