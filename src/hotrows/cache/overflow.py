"""The overflow buffer behind the last slot of a cache: copies of the rows of one batch that got no slot.

A copy is updated and written back only if nothing was planned since it was read.
"""

from hotrows.cache.maintenance import read_again_all, write_back_all
from hotrows.cache.row_cache import RowCache
from hotrows.cache.streams import CacheStreams
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.runtime.streams import record_event, writable_state

# A cache of at most this many bytes is copied when the buffer grows. The rows of a larger cache go through the store,
# because the device may not have the memory for the old and the new cache at once.
MAX_BYTES_TO_COPY = 1 << 27


def reserve(cache: RowCache, streams: CacheStreams, num: int) -> None:
    """Make the buffer hold at least `num` records."""
    if cache.num_slots + num <= cache.records.shape[0]:
        return
    streams.wait_for_moves()
    # The next batch may overflow by a few rows more, and growing is slow.
    wanted = max(num + num // 4, 2 * (cache.records.shape[0] - cache.num_slots))
    with writable_state():
        if cache.records.nbytes <= MAX_BYTES_TO_COPY:
            _grow_by_copy(cache, wanted)
        else:
            _grow_through_store(cache, streams, (wanted, num))
    record_event(cache.device).synchronize()  # nothing reads the old memory any more, and the new one is written


def _grow_by_copy(cache: RowCache, num: int) -> None:
    grown = cache.records.new_zeros(cache.num_slots + num, cache.records.shape[1])
    grown[: cache.records.shape[0]] = cache.records
    cache.records = grown


def _grow_through_store(cache: RowCache, streams: CacheStreams, buffer_sizes: tuple[int, ...]) -> None:
    """Write all rows back, free the old memory, and read the rows into new memory.

    The content of the buffer is lost. Nothing uses it, because the next batch overwrites it.

    Args:
        buffer_sizes: sizes to try, in rows, the largest first; the last is what the batch needs. If none fits, the
            buffer keeps its old size and the error is raised. If even that fails, the cache is lost (`RowCache.lose`).
    """
    num_before, words = cache.records.shape
    sizes = (*(cache.num_slots + size for size in buffer_sizes), num_before)
    failed: Exception | None = None
    with defer_sigint():  # until the rows are read again, they are not where the index says
        write_back_all(cache, streams)
        cache.records = cache.records.new_empty(0, words)
        try:
            for size in sizes:
                try:
                    cache.records = cache.records.new_zeros(size, words)
                    break
                except (RuntimeError, MemoryError) as error:
                    failed = failed or error
            if len(cache.records) < cache.num_slots:
                raise failed or MemoryError
            read_again_all(cache, streams)
        except BaseException as error:
            cache.lose()
            raise MemoryError(cache.lost) from error
    if failed is not None and len(cache.records) < sizes[-2]:
        raise failed
