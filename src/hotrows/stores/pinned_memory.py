"""Host memory of rows: private mappings with huge pages advised, registered with CUDA if kernels address them."""

import mmap
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_PORTABLE_AND_MAPPED = 3

_spare: "list[_Block] | None" = None  # None: memory that is freed returns to the system


def host_bytes(owner: object, num_bytes: int, device: torch.device) -> Tensor:
    """Uninitialized bytes that live as long as their owner; kernels can address them if the device is a CUDA device."""
    block = _take_spare(num_bytes) or _Block(num_bytes)
    if device.type == "cuda":
        block.register(device)
    finalizer = weakref.finalize(owner, _free, block)
    finalizer.atexit = False  # At exit the driver may be unloaded already, and the system frees the memory anyway.
    return block.bytes[:num_bytes]


@contextmanager
def memory_kept() -> Iterator[None]:
    """Keep the memory of owners that are deleted inside the block for the next owner that needs no more than that.

    Mapping and registering gigabytes takes seconds, which many runs one after the other would pay each.
    """
    global _spare
    assert _spare is None, "memory is kept already"
    _spare = []
    try:
        yield
    finally:
        spare, _spare = _spare, None
        for block in spare:
            block.unregister()


class _Block:
    """A mapping. It is private, because a shared anonymous mapping gets no huge pages."""

    def __init__(self, num_bytes: int) -> None:
        mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            mapping.madvise(mmap.MADV_HUGEPAGE)
        self.bytes = torch.frombuffer(mapping, dtype=torch.uint8)
        self.registered = False
        self._device: torch.device | None = None

    def register(self, device: torch.device) -> None:
        self._device = device
        if self.registered:
            return
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        num_bytes = self.bytes.numel()
        error = int(cudart.cudaHostRegister(self.bytes.data_ptr(), num_bytes, _PORTABLE_AND_MAPPED))
        if error:
            raise RuntimeError(
                f"cudaHostRegister of {num_bytes:,} bytes failed with CUDA error {error}: is the locked-memory limit "
                f"(ulimit -l) too low, or the host memory short?"
            )
        self.registered = True

    def wait(self) -> None:
        """Wait until no kernel of the previous owner writes to the memory any more."""
        if self.registered:
            torch.cuda.synchronize(self._device)

    def unregister(self) -> None:
        if self.registered:
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())  # type: ignore[no-untyped-call]
            self.registered = False


def _take_spare(num_bytes: int) -> _Block | None:
    """Take the smallest spare block that is large enough."""
    enough = [block for block in _spare or () if block.bytes.numel() >= num_bytes]
    if not enough:
        return None
    assert _spare is not None
    chosen = min(enough, key=lambda block: block.bytes.numel())
    _spare.remove(chosen)
    chosen.wait()
    return chosen


def _free(block: _Block) -> None:
    if _spare is None:
        block.unregister()
    else:
        _spare.append(block)
