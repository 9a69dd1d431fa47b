"""Every private call of PyTorch and every direct call of the CUDA driver that hotrows makes.

Each saves host time or GPU time and has a public, slower equivalent. HOTROWS_SAFE=1 in the environment, read when this
module is imported, switches all of them off: then this module answers None and the callers take the public way.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

SAFE = os.environ.get("HOTROWS_SAFE", "0") not in ("", "0")
StreamKey = tuple[int, int, int]


def current_stream_key(device: torch.device) -> StreamKey | None:
    """Identifies the current stream of a device. None if private calls are switched off."""
    if SAFE:
        return None
    return torch._C._cuda_getCurrentStream(device.index)  # type: ignore[no-any-return]


def current_raw_stream(device_index: int) -> int:
    """The address of the current stream of a device."""
    if SAFE:
        return int(torch.cuda.current_stream(device_index).cuda_stream)
    return torch._C._cuda_getCurrentRawStream(device_index)  # type: ignore[no-any-return]


def current_device_index() -> int:
    """`torch.cuda.current_device` without its check that CUDA is initialized."""
    return torch.cuda.current_device() if SAFE else torch._C._cuda_getDevice()  # type: ignore[no-any-return]


def switch_stream(stream: torch.cuda.Stream) -> Callable[[], None] | None:
    """Make a stream of the current device the current one. Answers what switches back.

    None, and nothing is switched, if another device is current or private calls are switched off: use
    `torch.cuda.stream` then.
    """
    if SAFE or torch._C._cuda_getDevice() != stream.device_index:
        return None
    before = torch._C._cuda_getCurrentStream(stream.device_index)
    torch._C._cuda_setStream(stream.stream_id, stream.device_index, stream.device_type)

    def switch_back() -> None:
        torch._C._cuda_setStream(*before)

    return switch_back


def end_allocation_to_pool(device: torch.device, pool: Any) -> None:
    """Take back what a failed graph capture left half open in PyTorch's allocator.

    There is no public call for it. Without it, later allocations of this process go to the pool of the failed capture,
    which wastes memory and changes nothing else.
    """
    if not SAFE:
        index = torch.cuda.current_device() if device.index is None else device.index
        torch._C._cuda_endAllocateToPool(index, pool)


def backward_pass_number() -> int | None:
    """Number of the backward pass that is running, negative outside of one. None if private calls are switched off."""
    return None if SAFE else int(torch._C._current_graph_task_id())


@cache
def host_to_device_copy() -> Callable[[int, int, int, int], int] | None:
    """The driver's `cuMemcpyHtoDAsync`. None if it is not there or private calls are switched off."""
    if SAFE:
        return None
    try:
        driver = ctypes.PyDLL("libcuda.so.1")  # a PyDLL keeps the interpreter lock: taking it back can be slow
    except OSError:
        return None
    copy: Callable[[int, int, int, int], int] = driver.cuMemcpyHtoDAsync_v2
    copy.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]  # type: ignore[attr-defined]
    return copy


@cache
def driver() -> ctypes.CDLL | None:
    """The CUDA driver library. None if it is not there or private calls are switched off."""
    if SAFE:
        return None
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
