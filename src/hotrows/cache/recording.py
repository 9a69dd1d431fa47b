"""Recording work as a CUDA graph."""

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hotrows.cache.memsets import become_kernels


class Recorder:
    """Records graphs that are replayed one after the other, never at the same time, and so can share memory.

    Args:
        priority: of the kernels, as for a stream. From PyTorch 2.10 on that of the stream in which they are replayed
            does not count.
    """

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        # one for all: PyTorch gives memory that was freed in one stream to nobody in another
        self._stream = torch.cuda.Stream(device, priority)  # type: ignore[no-untyped-call]

    @contextmanager
    def recording(self) -> Iterator[torch.cuda.CUDAGraph]:
        """What is launched inside goes into a new graph instead of being run.

        Python's garbage collector stays off meanwhile: to free pinned memory is not permitted while a stream records,
        and would spoil the recording.
        """
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        collects = gc.isenabled()
        gc.disable()
        try:
            # PyTorch touches the random generator's state when it begins to record, which steps in flight may read
            torch.cuda.synchronize(self._device)
            with torch.cuda.stream(self._stream):
                # other threads (a loader's) may go on calling CUDA
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    yield graph
                except BaseException:
                    self._abandon(graph)
                    raise
                graph.capture_end()
            become_kernels(graph, self._stream)
            graph.instantiate()
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
            done.synchronize()
        finally:
            if collects:
                gc.enable()

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a recording that failed; one that is spoiled PyTorch itself leaves half open."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it is empty, which is not the news
                graph.capture_end()
        except RuntimeError:
            index = torch.cuda.current_device() if self._device.index is None else self._device.index
            torch._C._cuda_endAllocateToPool(index, self._pool)
