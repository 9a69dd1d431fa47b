"""CUDA graphs without CUDA: a capture runs the step and undoes it, and a replay runs it again on the graph's memory.

So `GraphedStep` can be tested on the CPU, with the planning graph's kernels in Triton's interpreter: which batches are
replayed, what is copied to the graph's inputs, what comes out of its outputs, and what is counted. What a CPU cannot
show is whether streams wait for each other, and whether the kernels of a step can be captured.
"""

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import hotrows
from hotrows.graphs import captured_step, training_step
from hotrows.graphs.captured_step import CapturedStep
from hotrows.loop.scheduler import Scheduler
from hotrows.ops.write_to_address import kernel
from hotrows.runtime import cuda_private, streams

DEVICE = torch.device("cpu")


class FakeStream:
    def __init__(self, device: torch.device = DEVICE, priority: int = 0) -> None:
        self.device = device


class FakeEvent:
    def record(self, stream: FakeStream) -> None:
        assert isinstance(stream, FakeStream)

    def wait(self, stream: FakeStream) -> None:
        assert isinstance(stream, FakeStream)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class FakeGraph:
    """A graph of one step: to replay it is to run the step on its memory."""

    work: Callable[[], object]

    def replay(self) -> None:
        self.work()


class FakeCuda:
    """Stands in for CUDA.

    Attributes:
        state: tensors that a step changes, besides the records of the bags. A capture leaves them as they were.
        num_captured: how many captures there were.
        caller: the current stream.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state: Callable[[], list[Tensor]] = list
        self.num_captured = 0
        self.caller = FakeStream()
        cuda = self

        class FakeCapture:
            def __init__(self, device: torch.device, priority: int) -> None:
                assert (device, priority) == (DEVICE, training_step.PRIORITY)

            @contextlib.contextmanager
            def capture(self) -> Iterator[FakeGraph]:
                cuda.num_captured += 1
                tensors = cuda.state()
                before = [tensor.detach().clone() for tensor in tensors]
                try:
                    yield FakeGraph()
                finally:
                    for tensor, value in zip(tensors, before, strict=True):
                        tensor.detach().copy_(value)

        run = CapturedStep._run

        def run_and_note(captured: CapturedStep, *arguments: object) -> object:
            captured._graph.work = lambda: run(captured, *arguments)
            return run(captured, *arguments)

        write = kernel.write_to_address

        def write_in_replays(source: Tensor, address: Tensor) -> None:
            if int(address) != 0:  # a capture comes before the host has written the first address
                write(source, address)

        monkeypatch.setattr(kernel, "write_to_address", write_in_replays)
        monkeypatch.setattr(CapturedStep, "_run", run_and_note)
        monkeypatch.setattr(training_step, "GraphCapture", FakeCapture)
        monkeypatch.setattr(training_step, "current_stream", lambda device: self.caller)
        monkeypatch.setattr(streams, "_event_pools", {})
        monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
        monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
        monkeypatch.setattr(cuda_private, "current_device_index", lambda: None)
        monkeypatch.setattr(Scheduler, "reason_without_graph", lambda scheduler: None)
        assert captured_step.cuda_private is cuda_private

    def graphed(self, step, bags: hotrows.EmbeddingBagCollection, state=list, **arguments) -> hotrows.GraphedStep:
        """`hotrows.graphed` for bags on the CPU, as if they were on CUDA.

        Args:
            state: see the attribute.
        """
        records = [cache.records for cache in bags.caches]
        self.state = lambda: [*records, *state()]
        made = hotrows.graphed(step, bags, **arguments)
        made._on_cuda = True
        return made
