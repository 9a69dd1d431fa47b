"""Every private call of PyTorch and every direct call of a CUDA library that hotrows makes.

A call counts as private if a part of its dotted name begins with an underscore (`torch._C`, `torch._addmm_activation`,
`torch.utils._python_dispatch`, the autograd engine's callback queue) or if it goes through ctypes (the CUDA driver,
cuBLAS). Each of these calls saves host time, GPU time or memory. HOTROWS_SAFE=1 in the environment, read when this
module is imported, switches all of them off. The functions below then use a public, slower call if there is one.
Otherwise they do nothing, and where the caller must know, what they return says so. The results of training are as
exact with it as without it.

Not counted as private are `Tensor._version`, the attributes of `torch.cuda.CUDAGraph`, and `torch.cuda.cudart()`, which
PyTorch documents (`stores.pinned_memory` registers host memory with it). Two other modules use Python code of PyTorch
that has no public name: tests/runtime/test_cuda_private.py lists them, and finds every other private call.
"""

import ctypes
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SAFE = os.environ.get("HOTROWS_SAFE", "0") not in ("", "0")
StreamKey = tuple[int, int, int]
Undo = Callable[[], None]
Function = TypeVar("Function", bound=Callable[..., Any])
_SUCCESS = 0


def current_stream_key(device: torch.device) -> StreamKey | None:
    """Identifies the current stream of a device. None if private calls are switched off."""
    if SAFE:
        return None
    return torch._C._cuda_getCurrentStream(device.index)


def current_raw_stream(device_index: int) -> int:
    """The address of the current stream of a device."""
    if SAFE:
        return int(torch.cuda.current_stream(device_index).cuda_stream)
    return torch._C._cuda_getCurrentRawStream(device_index)


def current_device_index() -> int:
    """`torch.cuda.current_device` without its check that CUDA is initialized."""
    return torch.cuda.current_device() if SAFE else torch._C._cuda_getDevice()


def switch_stream(stream: torch.cuda.Stream) -> Undo | None:
    """Make a stream of the current device the current one.

    Returns:
        A function that switches back. None if nothing was switched, because another device is current or private calls
        are switched off: use `torch.cuda.stream` then.
    """
    if SAFE or torch._C._cuda_getDevice() != stream.device_index:
        return None
    before = torch._C._cuda_getCurrentStream(stream.device_index)
    torch._C._cuda_setStream(stream.stream_id, stream.device_index, stream.device_type)

    def switch_back() -> None:
        torch._C._cuda_setStream(*before)

    return switch_back


def end_allocation_to_pool(device: torch.device, pool: Any) -> None:
    """Tell PyTorch's allocator that a capture has ended whose `capture_end` raised before telling it.

    There is no public call for it. Without it, the allocator takes the capture to be under way: it refuses another
    capture into the same pool, and puts off reusing memory that several streams have used. Neither changes a result.
    """
    if not SAFE:
        index = torch.cuda.current_device() if device.index is None else device.index
        torch._C._cuda_endAllocateToPool(index, pool)


def graph_break(function: Function) -> Function:
    """Decorate a function that changes the state of a cache: `torch.compile` does not trace it, nor what it calls.

    Traced code would be compiled again whenever that state differs, and would copy the ids by which a batch is found.
    `torch.compiler.disable` does the same, but imports the compiler at once, which takes a second. Without private
    calls a function that is being traced calls it, and PyTorch warns if there are many ways to call the function.
    """
    if not SAFE:
        return cast(Function, torch._disable_dynamo(function))  # type: ignore[attr-defined]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            disable: Any = torch.compiler.disable
            return disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return cast(Function, call)


def backward_pass_number() -> int | None:
    """Number of the backward pass that is running, negative outside of one. None if private calls are switched off."""
    return None if SAFE else int(torch._C._current_graph_task_id())


def call_after_backward(callback: Callable[[], None]) -> bool:
    """Call back when the backward pass that is running has ended. False if private calls are switched off."""
    if SAFE:
        return False
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(callback)
    return True


def keeps_graph() -> bool:
    """False if the backward pass that is running frees its autograd graph, as without `retain_graph`.

    There is no public call that tells. With private calls switched off, every graph counts as kept.
    """
    return SAFE or bool(torch._C._autograd._get_current_graph_task_keep_graph())


_FIRST_IN_BACKWARD = 1 << 62


def run_first_in_backward(output: Tensor) -> Tensor:
    """Let the backward pass run the nodes from a tensor to a leaf as soon as their gradients are there.

    The path to the leaf follows the first input of each node. Among the nodes that are ready, autograd runs the one
    that was made last. There is no public call that changes this order. With private calls switched off the order
    stays, which changes no result.
    """
    node: Any = None if SAFE else output.grad_fn
    while node is not None and node._sequence_nr() < _FIRST_IN_BACKWARD:  # a leaf's node has the highest number already
        node._set_sequence_nr(node._sequence_nr() + _FIRST_IN_BACKWARD)
        node = node.next_functions[0][0]
    return output


def addmm_relu(bias: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """relu(bias + left @ right), with bias and ReLU as part of the matrix product."""
    if SAFE:
        return torch.addmm(bias, left, right).relu_()
    return torch._addmm_activation(bias, left, right)


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source to its target, in as few launches as possible."""
    if SAFE:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
    else:
        torch._foreach_copy_(targets, sources)


def replace_fused_steps(**steps: Callable[..., bool]) -> AbstractContextManager[object]:
    """While the returned context is entered, the given functions take the steps of PyTorch's fused optimizers.

    Nothing is replaced if private calls are switched off.

    Args:
        steps: by the name of the optimizer: "sgd", "adam" or "adamw". Each is called with the arguments of the fused
            operator and returns whether it has taken the step. If it has not, PyTorch takes it.
    """
    if SAFE:
        return nullcontext()
    return _ReplaceOperators({_fused_step(name): step for name, step in steps.items()})


@cache
def _fused_step(name: str) -> Any:
    """PyTorch's fused step for learning rates on the device."""
    return getattr(torch.ops.aten, f"_fused_{name}_").tensor_lr


class _ReplaceOperators(TorchDispatchMode):
    def __init__(self, replacements: Mapping[Any, Callable[..., bool]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._replacements = replacements

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        replacement = self._replacements.get(func)
        if replacement is not None and replacement(*args, **kwargs):
            return None
        return func(*args, **kwargs)


def limit_cublas(num_multiprocessors: int) -> Undo | None:
    """Let matrix products of this thread's cuBLAS handle use at most this many multiprocessors.

    Returns:
        A function that undoes it. None if nothing was limited, because the library has no such call or private calls
        are switched off.
    """
    library = None if SAFE else _cublas()
    if library is None:
        return None
    before = ctypes.c_int(0)
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())  # type: ignore[no-untyped-call]
    if library.cublasGetSmCountTarget(handle, ctypes.byref(before)) != _SUCCESS:
        return None
    library.cublasSetSmCountTarget(handle, num_multiprocessors)

    def undo() -> None:
        library.cublasSetSmCountTarget(handle, before)

    return undo


@cache
def _cublas() -> ctypes.CDLL | None:
    """The cuBLAS that PyTorch has loaded; its handles work in no other. None if not loaded, or without the calls."""
    version, only_if_loaded = torch.version.cuda, getattr(os, "RTLD_NOLOAD", None)
    if version is None or only_if_loaded is None:
        return None
    try:
        library = ctypes.CDLL(f"libcublas.so.{version.split('.')[0]}", mode=only_if_loaded | os.RTLD_NOW)
    except OSError:
        return None
    return library if hasattr(library, "cublasSetSmCountTarget") else None


def leave_multiprocessors_free(num_multiprocessors: int) -> Undo | None:
    """Let matrix products of cuBLASLt leave this many multiprocessors to other kernels.

    PyTorch has one such number for the whole process.

    Returns:
        A function that undoes it. None if nothing was set, because the user has set the number, PyTorch has no such
        call (it is experimental) or private calls are switched off.
    """
    if SAFE or not _has_carveout() or torch._C._get_sm_carveout_experimental() is not None:
        return None
    torch._C._set_sm_carveout_experimental(num_multiprocessors)

    def undo() -> None:
        torch._C._set_sm_carveout_experimental(None)

    return undo


@cache
def _has_carveout() -> bool:
    if not hasattr(torch._C, "_set_sm_carveout_experimental") or not hasattr(torch._C, "_get_sm_carveout_experimental"):
        return False
    with warnings.catch_warnings():  # PyTorch warns once that the call is experimental
        warnings.simplefilter("ignore")
        _SetCarveoutOnce.apply(torch.empty(0))  # type: ignore[no-untyped-call]
    return True


class _SetCarveoutOnce(torch.autograd.Function):
    """Sets the carveout and restores it, only so that PyTorch gives its one-time warning now.

    In an autograd function, PyTorch's C++ warning becomes a Python warning, which the caller can suppress.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        before = torch._C._get_sm_carveout_experimental()
        torch._C._set_sm_carveout_experimental(1)
        torch._C._set_sm_carveout_experimental(before)
        return x


def host_to_device_copy() -> Callable[[int, int, int, int], int] | None:
    """The driver's `cuMemcpyHtoDAsync`. None if it is not there or private calls are switched off."""
    return None if SAFE else _host_to_device_copy()


@cache
def _host_to_device_copy() -> Callable[[int, int, int, int], int] | None:
    try:
        driver = ctypes.PyDLL("libcuda.so.1")  # its calls do not release the GIL, because getting it back can be slow
    except OSError:
        return None
    copy: Callable[[int, int, int, int], int] = driver.cuMemcpyHtoDAsync_v2
    copy.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]  # type: ignore[attr-defined]
    return copy


def graph_nodes() -> "GraphNodes | None":
    """The driver's calls for the nodes of a CUDA graph. None if one is missing or private calls are switched off."""
    return None if SAFE else _graph_nodes()


@cache
def _graph_nodes() -> "GraphNodes | None":
    try:
        return GraphNodes(ctypes.CDLL("libcuda.so.1"))
    except (OSError, AttributeError):
        return None


class DriverError(Exception):
    """A call of the CUDA driver failed."""


class MemsetNode(NamedTuple):
    """What a memset node of a CUDA graph does: it sets `height` rows of `width` elements to a value."""

    address: int
    value: int
    element_size: int
    width: int
    height: int


class GraphNodes:
    """Reads and changes the nodes of CUDA graphs. Graphs and nodes are the driver's handles, as integers.

    Every method raises `DriverError` if the driver reports an error.
    """

    KERNEL, MEMSET = 0, 2  # kinds of nodes

    def __init__(self, library: Any) -> None:
        handle, handles, size = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
        self._get_nodes = _checked(library.cuGraphGetNodes, handle, handles, handle)
        self._get_kind = _checked(library.cuGraphNodeGetType, handle, handle)
        self._get_memset = _checked(library.cuGraphMemsetNodeGetParams, handle, handle)
        self._get_kernel = _checked(library.cuGraphKernelNodeGetParams_v2, handle, handle)
        self._get_dependencies = _checked(library.cuGraphNodeGetDependencies, handle, handles, handle)
        self._get_dependents = _checked(library.cuGraphNodeGetDependentNodes, handle, handles, handle)
        self._add_kernel = _checked(library.cuGraphAddKernelNode_v2, handle, handle, handles, size, handle)
        self._add_dependencies = _checked(library.cuGraphAddDependencies, handle, handles, handles, size)
        self._copy_attributes = _checked(library.cuGraphKernelNodeCopyAttributes, handle, handle)
        self._destroy = _checked(library.cuGraphDestroyNode, handle)

    def of_kind(self, graph: int, kind: int) -> list[int]:
        """The nodes of a graph that have the given kind."""
        return [node for node in _read_handles(self._get_nodes, graph) if self._kind(node) == kind]

    def _kind(self, node: int) -> int:
        found = ctypes.c_int()
        self._get_kind(node, ctypes.addressof(found))
        return found.value

    def memset(self, node: int) -> MemsetNode:
        """What a memset node does."""
        found = _MemsetParams()
        self._get_memset(node, ctypes.addressof(found))
        return MemsetNode(found.address, found.value, found.element_size, found.width, found.height)

    def dependencies(self, node: int) -> list[int]:
        """The nodes that a node waits for. Raises if it may begin before one ends (programmatic dependent launch)."""
        return _read_handles(self._get_dependencies, node)

    def dependents(self, node: int) -> list[int]:
        """The nodes that wait for a node. Raises if one may begin before it ends (programmatic dependent launch)."""
        return _read_handles(self._get_dependents, node)

    def add_kernel(self, graph: int, kernel: int, dependencies: list[int]) -> int:
        """Add a copy of another graph's kernel node, which waits for `dependencies`. Returns the new node."""
        parameters, added = _KernelParams(), ctypes.c_void_p()
        self._get_kernel(kernel, ctypes.addressof(parameters))
        before = _array(dependencies)
        self._add_kernel(
            ctypes.addressof(added), graph, ctypes.addressof(before), len(dependencies), ctypes.addressof(parameters)
        )
        assert added.value is not None
        return added.value

    def copy_attributes(self, target: int, source: int) -> None:
        """Give one kernel node the attributes of another, its priority among them."""
        self._copy_attributes(target, source)

    def add_dependents(self, graph: int, node: int, dependents: list[int]) -> None:
        """Make the nodes `dependents` wait for a node."""
        first, second = _array([node] * len(dependents)), _array(dependents)
        self._add_dependencies(graph, ctypes.addressof(first), ctypes.addressof(second), len(dependents))

    def destroy(self, node: int) -> None:
        """Take a node out of its graph."""
        self._destroy(node)


class _MemsetParams(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS"""

    _fields_ = [
        ("address", ctypes.c_uint64), ("pitch", ctypes.c_size_t), ("value", ctypes.c_uint),
        ("element_size", ctypes.c_uint), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
    ]  # fmt: skip


class _KernelParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2"""

    _fields_ = [
        ("function", ctypes.c_void_p), ("grid_and_block", ctypes.c_uint * 6), ("shared_bytes", ctypes.c_uint),
        ("arguments", ctypes.c_void_p), ("extra", ctypes.c_void_p), ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]  # fmt: skip


def _checked(function: Any, *types: Any) -> Callable[..., None]:
    """A function of the driver that raises instead of returning an error."""
    function.argtypes = types

    def call(*arguments: Any) -> None:
        error = function(*arguments)
        if error != _SUCCESS:
            raise DriverError(f"CUDA error {error}")

    return call


def _array(nodes: list[int]) -> "ctypes.Array[ctypes.c_void_p]":
    return (ctypes.c_void_p * len(nodes))(*nodes)


def _read_handles(call: Callable[..., None], source: int) -> list[int]:
    """All handles that a call of the driver returns. Called without an array, the driver returns how many there are."""
    num = ctypes.c_size_t()
    call(source, None, ctypes.addressof(num))
    if num.value == 0:
        return []
    found = (ctypes.c_void_p * num.value)()
    call(source, ctypes.addressof(found), ctypes.addressof(num))
    return [handle for handle in found if handle is not None]
