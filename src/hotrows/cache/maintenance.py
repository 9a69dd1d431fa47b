"""Operations on all rows of a cache: write every row back to the store, or read every row again."""

import torch
from torch import Tensor

from hotrows.cache.row_cache import RowCache
from hotrows.cache.streams import CacheStreams
from hotrows.ops.rows import NO_ROW
from hotrows.ops.swap import Moves
from hotrows.runtime.streams import record_event

SLOTS_AT_ONCE = 1 << 20  # a bound on the memory that moving a whole cache takes


def write_back_all(cache: RowCache, streams: CacheStreams) -> None:
    """Write every row of the cache back to the store, and wait for it."""
    cache.stats.bytes_out += _move_all_slots(cache, streams, out=True)


def read_again_all(cache: RowCache, streams: CacheStreams) -> None:
    """Read every row of the cache again from the store, and wait for it."""
    cache.stats.bytes_in += _move_all_slots(cache, streams, out=False)


def _move_all_slots(cache: RowCache, streams: CacheStreams, out: bool) -> int:
    """Move every row between its slot and the store, and wait for it.

    Args:
        out: write the rows back to the store; otherwise read them again.

    Returns:
        The number of bytes moved.
    """
    if cache.planner.row_of_slot is None:  # every row is on the device
        record_event(cache.device).synchronize()
        return 0
    row_of_slot = cache.planner.row_of_slot
    moved: list[Tensor] = []

    def work() -> None:
        for start in range(0, cache.num_slots, SLOTS_AT_ONCE):
            rows = row_of_slot[start : start + SLOTS_AT_ONCE]
            nothing = torch.full_like(rows, NO_ROW)
            slots = torch.arange(start, start + rows.numel(), dtype=torch.int32, device=rows.device)
            num = torch.full((1,), rows.numel(), dtype=torch.int32, device=rows.device)
            cache.move(Moves(slots, rows if out else nothing, nothing if out else rows, num))
            moved.append((rows >= 0).sum())

    streams.submit_move(work, (record_event(cache.device), streams.last_plan)).synchronize()
    return sum(map(int, moved)) * cache.record_bytes
