"""Copies from the host by the driver's own call, which takes the host a third of the time that PyTorch's takes."""

import ctypes
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

NO_CONTEXT = 201  # PyTorch's calls make the context current, the driver's own do not


def copy_from_host(target: Tensor, source: Tensor) -> None:
    """As `target.copy_(source, non_blocking=True)`, both of one shape, `target` without gaps.

    PyTorch does not know of it, so the caller must keep `source` until the current stream is past the copy. What is not
    pinned, CUDA takes a copy of before it goes on.
    """
    copy = _driver_copy() if target.is_cuda and not source.is_cuda else None
    if copy is None or source.dtype != target.dtype or not source.is_contiguous():
        target.copy_(source, non_blocking=True)
        return
    stream = torch._C._cuda_getCurrentRawStream(target.get_device())
    error = copy(target.data_ptr(), source.data_ptr(), target.nbytes, stream)
    if error == NO_CONTEXT:  # the first call of a thread
        target.copy_(source, non_blocking=True)
    elif error:
        raise RuntimeError(f"a copy of {target.nbytes:,} bytes from the host to {target.device} failed: CUDA {error}")


@cache
def _driver_copy() -> Callable[[int, int, int, int], int] | None:
    """`cuMemcpyHtoDAsync`, None where the driver has another name."""
    try:
        driver = ctypes.PyDLL("libcuda.so.1")  # keeps the interpreter's lock: to get it back may take long
    except OSError:
        return None
    copy: Callable[[int, int, int, int], int] = driver.cuMemcpyHtoDAsync_v2
    copy.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]  # type: ignore[attr-defined]
    return copy
