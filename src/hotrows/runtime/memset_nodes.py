"""Small memsets of a recording as kernels.

Matrix products and sorts set a few bytes of their work space to zero before they begin. In a graph that is a node of
its own kind, and going from a kernel to it and from it to a kernel takes several times as long as from kernel to kernel
(8 instead of 2 µs on an H200), in the middle of what is waited for.

PyTorch has no call for this, so the driver's own are used. Where one of them is not there or fails, the memset stays.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import torch

MOST_BYTES = 1 << 16  # what cuBLAS and small sorts need; of larger ones the driver may make kernels by itself
_KERNEL, _MEMSET = 0, 2  # kinds of nodes
_TYPES = {1: "|u1", 2: "<i2", 4: "<i4"}  # by the length of an element
_NODE = ctypes.c_void_p


class _Memset(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS"""

    _fields_ = [
        ("address", ctypes.c_uint64), ("pitch", ctypes.c_size_t), ("value", ctypes.c_uint),
        ("element_size", ctypes.c_uint), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
    ]  # fmt: skip


class _Kernel(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2"""

    _fields_ = [
        ("function", ctypes.c_void_p), ("grid_and_block", ctypes.c_uint * 6), ("shared_bytes", ctypes.c_uint),
        ("arguments", ctypes.c_void_p), ("extra", ctypes.c_void_p), ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]  # fmt: skip


class _FailedError(Exception):
    """A call of the driver did not succeed."""


class _Driver:
    """The driver's calls for graphs, as functions that raise."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.get_nodes = _raising(library.cuGraphGetNodes)
        self.get_kind = _raising(library.cuGraphNodeGetType)
        self.get_memset = _raising(library.cuGraphMemsetNodeGetParams)
        self.get_kernel = _raising(library.cuGraphKernelNodeGetParams_v2)
        self.get_before = _raising(library.cuGraphNodeGetDependencies)
        self.get_after = _raising(library.cuGraphNodeGetDependentNodes)
        self.add_kernel = _raising(library.cuGraphAddKernelNode_v2)
        self.add_edges = _raising(library.cuGraphAddDependencies)
        self.copy_attributes = _raising(library.cuGraphKernelNodeCopyAttributes)
        self.destroy = _raising(library.cuGraphDestroyNode)

    def nodes(self, graph: ctypes.c_void_p, kind: int) -> Iterator[ctypes.c_void_p]:
        """Those of a kind."""
        for node in _all(self.get_nodes, graph):
            found = ctypes.c_int()
            self.get_kind(node, ctypes.byref(found))
            if found.value == kind:
                yield node


def replace_memsets(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> int:
    """Put kernels in the places of a graph's small memsets.

    Args:
        graph: recorded in the stream with `keep_graph`, not instantiated yet; the kernels are recorded there, too.

    Returns:
        How many.
    """
    driver = _driver()
    if driver is None:
        return 0
    raw, num = ctypes.c_void_p(graph.raw_cuda_graph()), 0
    with suppress(_FailedError):
        for node in list(driver.nodes(raw, _MEMSET)):
            with suppress(_FailedError, RuntimeError):  # of PyTorch, which records the kernel
                num += _becomes_kernel(driver, raw, node, stream, graph.pool())
    return num


def _becomes_kernel(
    driver: _Driver, graph: ctypes.c_void_p, node: ctypes.c_void_p, stream: torch.cuda.Stream, pool: Any
) -> bool:
    memset = _Memset()
    driver.get_memset(node, ctypes.byref(memset))
    if memset.height != 1 or memset.width * memset.element_size > MOST_BYTES or memset.element_size not in _TYPES:
        return False
    # fails for edges of another kind than 'when that is done', as between kernels that overlap
    before, after = _all(driver.get_before, node), _all(driver.get_after, node)
    recorded = _record_fill(memset, stream, pool)
    kernels = list(driver.nodes(ctypes.c_void_p(recorded.raw_cuda_graph()), _KERNEL))
    if len(kernels) != 1:
        return False
    [fill], parameters, added = kernels, _Kernel(), _NODE()
    driver.get_kernel(fill, ctypes.byref(parameters))
    driver.add_kernel(
        ctypes.byref(added), graph, _array(before), ctypes.c_size_t(len(before)), ctypes.byref(parameters)
    )
    try:
        driver.copy_attributes(added, fill)  # its priority among them
        driver.add_edges(graph, _array([added] * len(after)), _array(after), ctypes.c_size_t(len(after)))
        driver.destroy(node)
    except _FailedError as error:
        _take_out(driver, added)
        raise error from None
    return True


def _take_out(driver: _Driver, node: ctypes.c_void_p) -> None:
    """A kernel that was added and waits for nobody, or nobody for it, must not stay."""
    try:
        driver.destroy(node)
    except _FailedError:
        raise OSError("a kernel could not be taken out of a CUDA graph again") from None


class _Memory:
    """Memory that somebody else owns, as `torch.as_tensor` takes it."""

    def __init__(self, memset: _Memset) -> None:
        self.__cuda_array_interface__ = {
            "shape": (memset.width,), "typestr": _TYPES[memset.element_size], "data": (memset.address, False),
            "version": 3,
        }  # fmt: skip


def _record_fill(memset: _Memset, stream: torch.cuda.Stream, pool: Any) -> torch.cuda.CUDAGraph:
    """A graph of one kernel, which does the same."""
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


def _array(nodes: list[ctypes.c_void_p]) -> Any:
    return (_NODE * len(nodes))(*(node.value for node in nodes))


def _all(ask: Callable[..., None], of: ctypes.c_void_p) -> list[ctypes.c_void_p]:
    """Every node that a call answers, which first is asked how many there are."""
    num = ctypes.c_size_t()
    ask(of, None, ctypes.byref(num))
    if num.value == 0:
        return []
    found = (_NODE * num.value)()
    ask(of, found, ctypes.byref(num))
    return [_NODE(each) for each in found]


def _raising(call: Any) -> Callable[..., None]:
    def called(*arguments: Any) -> None:
        if call(*arguments) != 0:
            raise _FailedError

    return called


@cache
def _driver() -> _Driver | None:
    try:
        return _Driver(ctypes.CDLL("libcuda.so.1"))
    except (OSError, AttributeError):
        return None
