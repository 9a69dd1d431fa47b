"""Move records between store and cache, both ways in one pass."""

from torch import Tensor

from hotrows.ops.swap import reference


def swap(
    cache: Tensor,
    store: Tensor,
    slots: Tensor,
    rows_out: Tensor,
    rows_in: Tensor,
    num: Tensor,
    lookups: int | None = None,
) -> None:
    """For each of the first `num` moves: store[row out] = cache[slot], then cache[slot] = store[row in].

    A move without a row out (NO_ROW) writes nothing back, one without a row in fetches nothing; the slot of a move
    without both does not matter. No slot and no row occurs twice among the moves.

    Args:
        cache: float32 [≥ S, W] on the device. store: float32 [R, W] on the host (registered on a CUDA machine).
        slots: int32 [K]. rows_out, rows_in: int64 [K]. num: int32 [1].
        lookups: of a batch that trains meanwhile, None for K.
    """
    if cache.is_cuda:
        from hotrows.ops.swap import kernel

        kernel.swap(cache, store, slots, rows_out, rows_in, num, lookups)
    else:
        reference.swap(cache, store, slots, rows_out, rows_in, num)
