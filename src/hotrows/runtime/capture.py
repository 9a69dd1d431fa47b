"""Captures CUDA graphs."""

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from hotrows.runtime import cuda_private
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.runtime.memset_nodes import replace_memsets


class GraphCapture:
    """Captures graphs that share memory. So they must be replayed one after the other, never at the same time.

    Args:
        priority: the priority of the captured kernels, as for a stream. From PyTorch 2.10 on, the priority of the
            stream that replays a graph has no effect.
    """

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        # One stream for all captures, because PyTorch reuses memory only in the stream for which it was allocated.
        self._stream = torch.cuda.Stream(device, priority)  # type: ignore[no-untyped-call]

    @contextmanager
    def capture(self) -> Iterator[torch.cuda.CUDAGraph]:
        """Kernels that are launched inside the block go into a new graph and do not run.

        Python's garbage collector is off inside the block, because freeing pinned memory would invalidate the capture.
        Ctrl-C is delivered after the block, so that no stream is left capturing.
        """
        with defer_sigint():
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            collects = gc.isenabled()
            gc.disable()
            try:
                # When a capture begins, PyTorch writes the state of the random generator, which queued steps may read.
                torch.cuda.synchronize(self._device)
                with torch.cuda.stream(self._stream):
                    # "thread_local": other threads (a loader's) may go on calling CUDA.
                    graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                    try:
                        yield graph
                    except BaseException:
                        self._abort(graph)
                        raise
                    self._end(graph)  # raises if the block has hidden an error that invalidated the capture
                replace_memsets(graph, self._stream)
                graph.instantiate()
                done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record(self._stream)
                done.synchronize()
            finally:
                if collects:
                    gc.enable()

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture. If it was invalidated, `capture_end` raises before telling PyTorch's allocator of its end."""
        try:
            graph.capture_end()
        except RuntimeError:
            cuda_private.end_allocation_to_pool(self._device, self._pool)
            raise

    def _abort(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture whose block has raised. That error is the one to report."""
        with suppress(RuntimeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning that the graph is empty would hide what really failed
            self._end(graph)
