"""All rows in host memory of exactly their size, filled with small random numbers. With a GPU, it is page-locked.

PyTorch's pinned allocator would round 17.3 GB up to 32 GB, and would not return them to the system.
"""

import mmap
import weakref

import torch
from torch import Tensor

CHUNK_BYTES = 1 << 28
BOUND = 0.01  # first values are uniform in ± this


def first_rows(sizes: list[int], device: torch.device) -> Tensor:
    """The first row of each table if all tables follow each other, int64 [F]."""
    return torch.tensor([0, *sizes[:-1]], device=device).cumsum(0)


class HostRows:
    """`values` is float32 [num_rows, dim]."""

    def __init__(self, num_rows: int, dim: int, device: torch.device) -> None:
        num_bytes = num_rows * dim * 4
        mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            mapping.madvise(mmap.MADV_HUGEPAGE)
        self.values = torch.frombuffer(mapping, dtype=torch.float32).view(num_rows, dim)
        self._unregister: weakref.finalize[..., HostRows] | None = None
        if device.type == "cuda":
            self._register(num_bytes)
        self._fill(device)

    def close(self) -> None:
        """Unlock the pages. The memory returns to the system when no tensor uses it any more."""
        if self._unregister is not None:
            torch.cuda.synchronize()
            self._unregister()
        self.values = torch.empty(0)

    def _register(self, num_bytes: int) -> None:
        address = self.values.data_ptr()
        portable_and_mapped = 3
        cudart = torch.cuda.cudart()
        error = int(cudart.cudaHostRegister(address, num_bytes, portable_and_mapped))
        if error:
            raise RuntimeError(f"cudaHostRegister of {num_bytes:,} bytes failed with CUDA error {error}")
        self._unregister = weakref.finalize(self, cudart.cudaHostUnregister, address)
        self._unregister.atexit = False  # the driver may be unloaded before

    def _fill(self, device: torch.device) -> None:
        num_rows, dim = self.values.shape
        step = min(num_rows, max(1, CHUNK_BYTES // (dim * 4)))
        chunk = torch.empty(step, dim, device=device).uniform_(-BOUND, BOUND)
        for start in range(0, num_rows, step):
            part = self.values[start : start + step]
            part.copy_(chunk[: part.shape[0]])
            if device.type == "cuda":  # a CPU would take long, so it repeats the first chunk
                chunk.uniform_(-BOUND, BOUND)
