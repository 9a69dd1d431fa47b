"""Copies from host to device with the driver's own call, which takes the host a third of the time of PyTorch's."""

import torch
from torch import Tensor

from hotrows.runtime import cuda_private

NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: unlike PyTorch's calls, the driver's do not make the context current


class HostCopy:
    """Repeats `target.copy_(source, non_blocking=True)` for sources of one shape. `target` must be contiguous.

    PyTorch does not know of the copy, so the caller keeps `source` alive until the stream has passed the copy. If
    `source` is not pinned, CUDA has read all of it when the call returns.
    """

    __slots__ = ("_address", "_copy", "_device_index", "_dtype", "_num_bytes", "target")

    def __init__(self, target: Tensor) -> None:
        self.target = target
        self._copy = cuda_private.host_to_device_copy() if target.is_cuda else None
        self._device_index = target.get_device()
        self._address, self._num_bytes, self._dtype = target.data_ptr(), target.nbytes, target.dtype

    def copy(self, source: Tensor, stream: torch.cuda.Stream | None = None) -> None:
        """Copy in a stream of the target's device, which must be the current device; by default the current stream."""
        if self._copy is None or source.is_cuda or source.dtype != self._dtype or not source.is_contiguous():
            self._copy_with_pytorch(source, stream)
            return
        raw = cuda_private.current_raw_stream(self._device_index) if stream is None else stream.cuda_stream
        error = self._copy(self._address, source.data_ptr(), self._num_bytes, raw)
        if error == NO_CONTEXT:  # this is the first CUDA call of this thread
            self._copy_with_pytorch(source, stream)
        elif error:
            raise RuntimeError(
                f"copying {self._num_bytes:,} bytes from host to {self.target.device} failed with CUDA error {error}"
            )

    def _copy_with_pytorch(self, source: Tensor, stream: torch.cuda.Stream | None) -> None:
        if stream is None:
            self.target.copy_(source, non_blocking=True)
        else:
            with torch.cuda.stream(stream):
                self.target.copy_(source, non_blocking=True)
