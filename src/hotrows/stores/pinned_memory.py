"""Host memory of rows: private mappings with huge pages advised, registered with CUDA where kernels reach them."""

import mmap
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_PORTABLE_AND_MAPPED = 3

_spare: "list[_Block] | None" = None  # None: memory that is let go of goes back to the system


def host_bytes(owner: object, num_bytes: int, device: torch.device) -> Tensor:
    """Bytes of any content, the owner's for as long as it lives; kernels of a CUDA device reach them."""
    block = _take_spare(num_bytes) or _Block(num_bytes)
    if device.type == "cuda":
        block.register(device)
    finalizer = weakref.finalize(owner, _let_go, block)
    finalizer.atexit = False  # the driver may be gone by then, and frees it anyway
    return block.bytes[:num_bytes]


@contextmanager
def memory_kept() -> Iterator[None]:
    """Within it, memory that an owner lets go of is kept for the next one that needs no more.

    Mapping and registering gigabytes takes seconds, which many runs one after the other need not pay each.
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
    """Private, because a shared anonymous mapping gets no huge pages."""

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
        """Until no kernel writes for its last owner any more."""
        if self.registered:
            torch.cuda.synchronize(self._device)

    def unregister(self) -> None:
        if self.registered:
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())  # type: ignore[no-untyped-call]
            self.registered = False


def _take_spare(num_bytes: int) -> _Block | None:
    """The smallest spare block that is large enough."""
    enough = [block for block in _spare or () if block.bytes.numel() >= num_bytes]
    if not enough:
        return None
    assert _spare is not None
    chosen = min(enough, key=lambda block: block.bytes.numel())
    _spare.remove(chosen)
    chosen.wait()
    return chosen


def _let_go(block: _Block) -> None:
    if _spare is None:
        block.unregister()
    else:
        _spare.append(block)
