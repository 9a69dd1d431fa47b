"""Replaces the small memsets of a captured CUDA graph by kernels.

Matrix products and sorts set a few bytes of their workspace to zero before they begin. In a graph, each such write is a
memset node. On an H200, going from a kernel node through a memset node to the next kernel takes 8 µs, and going from
kernel to kernel 2 µs. The memsets are on the critical path of the step.

PyTorch cannot change the nodes of a graph, so the driver's calls are used (`cuda_private.GraphNodes`). If one of them
is missing or fails, the memset stays.
"""

from contextlib import suppress
from typing import Any

import torch

from hotrows.runtime import cuda_private
from hotrows.runtime.cuda_private import DriverError, GraphNodes, MemsetNode

MAX_BYTES = 1 << 16  # What cuBLAS and small sorts need. The driver may itself turn larger memsets into kernels.
_TYPES = {1: "|u1", 2: "<i2", 4: "<i4"}  # by the size of an element


def replace_memsets(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> int:
    """Replace a graph's small memsets by kernels that write the same bytes.

    Args:
        graph: captured in `stream` with `keep_graph`, not instantiated yet.
        stream: also captures the new kernels.

    Returns:
        How many memsets were replaced.
    """
    driver = cuda_private.graph_nodes()
    if driver is None:
        return 0
    raw, num_replaced = graph.raw_cuda_graph(), 0
    with suppress(DriverError):
        for node in driver.of_kind(raw, driver.MEMSET):
            with suppress(DriverError, RuntimeError):  # PyTorch raises RuntimeError if it cannot capture the kernel
                num_replaced += _replace(driver, raw, node, stream, graph.pool())
    return num_replaced


def _replace(driver: GraphNodes, graph: int, node: int, stream: torch.cuda.Stream, pool: Any) -> bool:
    """Replace one memset node. False if it stays."""
    memset = driver.memset(node)
    if memset.height != 1 or memset.width * memset.element_size > MAX_BYTES or memset.element_size not in _TYPES:
        return False
    before, after = driver.dependencies(node), driver.dependents(node)
    fill = _capture_fill(memset, stream, pool)  # must live until its kernel is copied: it owns the arguments
    kernels = driver.of_kind(fill.raw_cuda_graph(), driver.KERNEL)
    if len(kernels) != 1:
        return False
    [kernel] = kernels
    added = driver.add_kernel(graph, kernel, before)
    try:
        driver.copy_attributes(added, kernel)
        driver.add_dependents(graph, added, after)
        driver.destroy(node)
    except DriverError as error:
        _remove(driver, added)
        raise error from None
    return True


def _remove(driver: GraphNodes, node: int) -> None:
    """Remove an added kernel whose dependents could not be set: it could run at any time relative to them.

    If it cannot be removed, the graph must not be used. So this raises an OSError, which `replace_memsets` does not
    suppress.
    """
    try:
        driver.destroy(node)
    except DriverError:
        raise OSError("a kernel node that was added to a CUDA graph could not be removed from it") from None


class _Memory:
    """The memory that a memset writes, in the form that `torch.as_tensor` takes. This object does not own it."""

    def __init__(self, memset: MemsetNode) -> None:
        self.__cuda_array_interface__ = {
            "shape": (memset.width,), "typestr": _TYPES[memset.element_size], "data": (memset.address, False),
            "version": 3,
        }  # fmt: skip


def _capture_fill(memset: MemsetNode, stream: torch.cuda.Stream, pool: Any) -> torch.cuda.CUDAGraph:
    """Capture a graph of one kernel that does what the memset does."""
    memory = torch.as_tensor(_Memory(memset), device=stream.device)
    bits = 8 * memset.element_size
    value = memset.value & ((1 << bits) - 1)
    if memset.element_size > 1 and value >> (bits - 1):
        value -= 1 << bits
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            memory.fill_(value)
        finally:
            graph.capture_end()
    return graph
