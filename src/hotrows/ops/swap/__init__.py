"""Move records between store and cache, in both directions in one pass."""

from torch import Tensor

from hotrows.ops.swap import reference
from hotrows.ops.swap.moves import Moves

__all__ = ["Moves", "swap"]


def swap(cache: Tensor, store: Tensor, moves: Moves) -> None:
    """For each move: store[row out] = cache[slot], then cache[slot] = store[row in].

    Args:
        cache: float32 [≥ S, W] on the device. store: float32 [R, W] in host memory, with CUDA pinned.
    """
    if cache.is_cuda:
        from hotrows.ops.swap import kernel

        kernel.swap(cache, store, moves)
    else:
        reference.swap(cache, store, moves)
