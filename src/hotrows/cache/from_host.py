"""Copies from the host by the driver's own call, which takes the host a third of the time that PyTorch's takes."""

import ctypes
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

NO_CONTEXT = 201  # PyTorch's calls make the context current, the driver's own do not


class CopiesFromHost:
    """`target.copy_(source, non_blocking=True)` time and again, both of one shape, `target` without gaps.

    PyTorch does not know of it, so the caller must keep `source` until the stream is past the copy. What is not pinned,
    CUDA takes a copy of before it goes on.
    """

    __slots__ = ("_address", "_copy", "_device_index", "_dtype", "_num_bytes", "target")

    def __init__(self, target: Tensor) -> None:
        self.target = target
        self._copy = _driver_copy() if target.is_cuda else None
        self._device_index = target.get_device()
        self._address, self._num_bytes, self._dtype = target.data_ptr(), target.nbytes, target.dtype

    def copy(self, source: Tensor, stream: torch.cuda.Stream | None = None) -> None:
        """Copy in a stream of the target's device, which is the current device: the current stream if none is given."""
        if self._copy is None or source.is_cuda or source.dtype != self._dtype or not source.is_contiguous():
            self._copy_as_pytorch(source, stream)
            return
        raw = torch._C._cuda_getCurrentRawStream(self._device_index) if stream is None else stream.cuda_stream
        error = self._copy(self._address, source.data_ptr(), self._num_bytes, raw)
        if error == NO_CONTEXT:  # the first call of a thread
            self._copy_as_pytorch(source, stream)
        elif error:
            raise RuntimeError(
                f"a copy of {self._num_bytes:,} bytes from the host to {self.target.device} failed: CUDA {error}"
            )

    def _copy_as_pytorch(self, source: Tensor, stream: torch.cuda.Stream | None) -> None:
        if stream is None:
            self.target.copy_(source, non_blocking=True)
        else:
            with torch.cuda.stream(stream):
                self.target.copy_(source, non_blocking=True)


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
