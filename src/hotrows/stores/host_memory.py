"""Host memory that a kernel reaches: a private mapping with huge pages advised, registered with the CUDA driver."""

import mmap
import weakref

import torch
from torch import Tensor


def map_bytes(num_bytes: int) -> Tensor:
    """Zeroed bytes. Private, because a shared anonymous mapping gets no huge pages."""
    mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapping, dtype=torch.uint8)


def register(owner: object, mapped: Tensor) -> None:
    """Let kernels reach mapped memory, for as long as its owner lives."""
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address, num_bytes = mapped.data_ptr(), mapped.numel() * mapped.element_size()
    portable_and_mapped = 3
    error = int(cudart.cudaHostRegister(address, num_bytes, portable_and_mapped))
    if error:
        raise RuntimeError(
            f"cudaHostRegister of {num_bytes:,} bytes failed with CUDA error {error}: is the locked-memory limit "
            f"(ulimit -l) too low, or the host memory short?"
        )
    finalizer = weakref.finalize(owner, cudart.cudaHostUnregister, address)
    finalizer.atexit = False  # the driver may be gone by then, and frees it anyway
