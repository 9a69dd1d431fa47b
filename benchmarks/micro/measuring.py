"""Timing functions that the benchmarks of single kernels share."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

import torch
from triton.testing import do_bench


def replayed(function: Callable[[], object]) -> float:
    """The microseconds of one replay of a CUDA graph of a call. The L2 cache is flushed before it."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        function()
    microseconds: float = 1000 * do_bench(graph.replay, warmup=5, rep=25, return_mode="median")
    return microseconds


def bytes_per_microsecond() -> float:
    """The bytes that a copy reads and writes, which is a ceiling for kernels that are bound by memory."""
    source = torch.empty(2**28, device="cuda")
    target = torch.empty_like(source)
    ms = do_bench(lambda: target.copy_(source), warmup=5, rep=25, return_mode="median")
    return 2 * source.nbytes / (1000 * ms)


@contextmanager
def set_to(kernel: ModuleType, variant: Mapping[str, int]) -> Iterator[None]:
    """Inside the context, constants of a kernel's module have other values."""
    before = {name: getattr(kernel, name) for name in variant}
    for name, value in variant.items():
        setattr(kernel, name, value)
    yield
    for name, value in before.items():
        setattr(kernel, name, value)
