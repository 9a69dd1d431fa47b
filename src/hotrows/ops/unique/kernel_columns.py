"""Unique rows where every column has a table of its own: one program sorts one column of a small batch.

Each of several coalesced batches is sorted by itself. The position of its rows in the union is found by searching the
columns of the other batches.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.rows import LOOKUPS_PER_BLOCK, NO_ROW
from hotrows.ops.unique.kernel_in_order import sums
from hotrows.ops.unique.kernel_parts import UnionArrays

_NO_ROW = tl.constexpr(NO_ROW)
PER_THREAD, MAX_WARPS = 4, 16  # ids of a thread, which are more if MAX_WARPS are too few
_SAMPLES_PER_WARP = 128
_CHUNK = 128  # blocks whose counts are summed at a time


@triton.jit(do_not_specialize=["num_samples"])
def sort_columns(
    ids, columns, first_row, num_rows, column_order, bad, request_buffer, num_samples, num_features, stride,
    ordered, sorted_order, firsts,
    LAST: tl.constexpr, PARTS: tl.constexpr, BITS: tl.constexpr, PER_THREAD: tl.constexpr,
):  # fmt: skip
    """Sort each column of each part. The sorted numbers are made of an id and, in the last BITS, its sample.

    Args:
        bad: the counts on the device (see `unique_ids`), from the second number of the first batch on.
        num_samples: samples of one part.
        ordered: [columns, PARTS, num_samples], the rows in ascending order, LAST for a lookup without a row.
        sorted_order: the lookups of these rows.
        firsts: [PARTS, columns], how many of these lookups are the first of their row.
    """
    BLOCK: tl.constexpr = 1 << BITS
    NO_ID: tl.constexpr = (1 << (63 - BITS)) - 1
    rank, part = tl.program_id(0), tl.program_id(1)
    bad += (tl.load(request_buffer) * PARTS + part) * 2
    feature = tl.load(column_order + rank)
    source = feature.to(tl.int64)
    if columns is not None:
        source = tl.load(columns + feature)
    sample = tl.arange(0, BLOCK)
    inside = sample < num_samples
    ids += part.to(tl.int64) * num_samples * stride
    found = tl.load(ids + sample.to(tl.int64) * stride + source, mask=inside, other=-1).to(tl.int64)
    good = (found >= 0) & (found < tl.load(num_rows + feature))
    # The first bad position has the most lookups behind it.
    left = (num_samples - sample) * num_features - feature
    tl.atomic_max(bad + tl.zeros_like(sample), left, mask=inside & ~good, sem="relaxed")
    # A position beyond the last sample has no id, so it is sorted behind all samples.
    pair = (tl.where(good, found, NO_ID) << BITS) | sample
    # The ids of a thread are loaded far apart. As neighbours, most of them are compared without shared memory.
    transposed = tl.trans(tl.reshape(pair, [PER_THREAD, BLOCK // PER_THREAD]))
    pair = tl.sort(tl.reshape(transposed, [BLOCK]))

    found = pair >> BITS
    before = tl.gather(found, tl.maximum(sample - 1, 0), 0)
    first = ((found != before) | (sample == 0)) & (found != NO_ID)
    tl.store(firsts + part * tl.num_programs(0) + rank, tl.sum(first.to(tl.int32), 0))
    row = tl.where(found == NO_ID, LAST, found + tl.load(first_row + feature))
    lookup = (pair & (BLOCK - 1)).to(tl.int32) * num_features + feature
    position = (rank * PARTS + part).to(tl.int64) * num_samples + sample
    tl.store(ordered + position, row.to(ordered.dtype.element_ty), mask=inside)
    tl.store(sorted_order + position, lookup, mask=inside)


@triton.jit
def _rows_of_part(column, part, position, num_samples, LAST: tl.constexpr):
    """The rows of a part in ascending order, and which lookups are the first of their row."""
    inside = position < num_samples
    rows = column + part * num_samples
    row = tl.load(rows + position, mask=inside, other=LAST)
    before = tl.load(rows + position - 1, mask=inside & (position > 0), other=_NO_ROW)
    return row, (row != LAST) & (row != before)


@triton.jit(do_not_specialize=["num_samples"])
def compare_parts(
    ordered, num_samples, below, new_to, num_new,
    LAST: tl.constexpr, PARTS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Compare the rows of one part with those of the others. A row is new if no earlier part has it.

    Args:
        below: [columns, PARTS, PARTS, num_samples], how many lookups of each part have a lower row, for each lookup of
            a part that is the first of its row.
        new_to: [columns, PARTS, num_samples], how many rows of the part are new up to each lookup.
        num_new: [columns, PARTS], how many rows of the part are new.
    """
    BLOCK: tl.constexpr = 1 << BITS
    in_column = (tl.program_id(0) * PARTS + tl.program_id(1)).to(tl.int64)
    part = tl.program_id(1)
    column = ordered + tl.program_id(0).to(tl.int64) * PARTS * num_samples
    position = tl.arange(0, BLOCK)
    inside = position < num_samples
    row, first = _rows_of_part(column, part, position, num_samples, LAST)
    new = first
    for other in tl.static_range(PARTS):
        found = position
        if other != part:
            rows = column + other * num_samples
            found = tl.zeros([BLOCK], tl.int32)
            for step in tl.static_range(BITS + 1):
                size = 1 << (BITS - step)
                probe = found + size - 1
                is_below = tl.load(rows + probe, mask=first & (probe < num_samples), other=LAST) < row
                found = tl.where(is_below, found + size, found)
            if other < part:
                new = new & (tl.load(rows + found, mask=first & (found < num_samples), other=LAST) != row)
        tl.store(below + (in_column * PARTS + other) * num_samples + position, found, mask=first)
    tl.store(new_to + in_column * num_samples + position, tl.cumsum(new.to(tl.int32), 0), mask=inside)
    tl.store(num_new + in_column, tl.sum(new.to(tl.int32), 0))


@triton.jit(do_not_specialize=["num_samples", "num_columns"])
def scatter_columns(
    ordered, sorted_order, firsts, below, new_to, num_new, bad, counts_on_host, request_buffer, num_samples,
    num_columns, rows, counts_on_device, inverse, order, starts, block_rows, stride, block_stride,
    union_rows, union_starts, union_counts_on_device, union_counts_on_host, in_union, union_stride,
    LAST: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, PER_BLOCK_ROW: tl.constexpr,
):  # fmt: skip
    """Write the unique rows of each part as if it were alone, and of the union; one program for a column of a part."""
    buffer = tl.load(request_buffer).to(tl.int64)
    rank, part = tl.program_id(0), tl.program_id(1)
    offset = tl.arange(0, BLOCK)
    inside = offset < num_samples
    union_rows += buffer * union_stride
    union_starts += buffer * union_stride
    in_column = (rank * PARTS + part).to(tl.int64)
    column = ordered + rank.to(tl.int64) * PARTS * num_samples
    row, first = _rows_of_part(column, part, offset, num_samples, LAST)
    row = row.to(tl.int64)

    before_this, num_rows = sums(num_new, num_columns * PARTS, rank * PARTS, CHUNK)
    unique = tl.zeros([BLOCK], tl.int32) + before_this
    start = (tl.zeros([BLOCK], tl.int32) + rank) * PARTS * num_samples
    for other in tl.static_range(PARTS):
        lower = tl.load(below + (in_column * PARTS + other) * num_samples + offset, mask=first, other=0)
        new_lower = new_to + (rank * PARTS + other).to(tl.int64) * num_samples + lower - 1
        unique += tl.load(new_lower, mask=first & (lower > 0), other=0)
        start += lower
    own_new_to = new_to + in_column * num_samples + offset
    new_up_to = tl.load(own_new_to, mask=inside, other=0)
    is_new = first & (new_up_to > tl.load(own_new_to - 1, mask=inside & (offset > 0), other=0))
    tl.store(union_rows + unique, row, mask=is_new)
    tl.store(union_starts + unique, start, mask=is_new)
    num_lookups = num_columns * PARTS * num_samples
    position = (in_column * num_samples + offset).to(tl.int32)
    beyond = inside & (position >= num_rows)
    tl.store(union_rows + position, tl.full([BLOCK], _NO_ROW, tl.int64), mask=beyond)
    tl.store(union_starts + position, tl.zeros([BLOCK], tl.int32) + num_lookups, mask=beyond)
    is_first = (rank == 0) & (part == 0)
    tl.store(union_starts + num_lookups, num_lookups, mask=is_first)
    tl.store(union_counts_on_device + buffer * 2, num_rows, mask=is_first)
    tl.store(union_counts_on_host + buffer * 2, num_rows, mask=is_first)

    per_part = num_columns * num_samples
    of_part = buffer * PARTS + part
    own = of_part * stride
    rows_before, num_own = sums(firsts + part * num_columns, num_columns, rank, CHUNK)
    what_is_bad = tl.load(bad + of_part * 2)
    used = (what_is_bad == 0).to(tl.int32)  # a batch with a bad id has no rows at all
    num_own *= used
    own_unique = rows_before + tl.cumsum(first.to(tl.int32), 0) - 1
    own_position = rank * num_samples + offset
    lookup = tl.load(sorted_order + position, mask=inside, other=0)
    tl.store(order + own + own_position, lookup, mask=inside)
    tl.store(inverse + own + lookup, tl.where(used > 0, own_unique, -1), mask=inside)
    first = first & (used > 0)
    tl.store(rows + own + own_unique, row, mask=first)
    tl.store(starts + own + own_unique, own_position, mask=first)
    tl.store(in_union + own + own_unique, unique, mask=first)
    beyond = inside & (own_position >= num_own)
    tl.store(rows + own + own_position, tl.full([BLOCK], _NO_ROW, tl.int64), mask=beyond)
    tl.store(starts + own + own_position, tl.zeros([BLOCK], tl.int32) + per_part * used, mask=beyond)
    begins = inside & (own_position % PER_BLOCK_ROW == 0)
    block_row = of_part * block_stride + own_position // PER_BLOCK_ROW
    tl.store(block_rows + block_row, tl.maximum(own_unique, 0), mask=begins)
    tl.store(starts + own + per_part, per_part * used, mask=rank == 0)
    tl.store(counts_on_device + of_part * 2, num_own, mask=rank == 0)
    tl.store(counts_on_host + of_part * 2, num_own, mask=rank == 0)
    tl.store(counts_on_host + of_part * 2 + 1, what_is_bad, mask=rank == 0)


def bits_of(num_samples: int) -> int:
    """The bits that the number of a sample takes."""
    return max((num_samples - 1).bit_length(), 5)


def sort(
    ids: Tensor, columns: Tensor | None, first_row: Tensor, num_rows: Tensor, column_order: Tensor, bad: Tensor,
    request_buffer: Tensor, keys: Tensor, parts: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sort the columns. Their rows go into `keys`.

    Returns:
        The lookups in this order, and for each part and column how many of them are the first of their row.
    """
    num_samples, num_features = len(ids) // parts, first_row.numel()
    bits = bits_of(num_samples)
    num_warps = min(max((1 << bits) // (32 * PER_THREAD), 1), MAX_WARPS)
    order, firsts = (bad.new_empty(length) for length in (keys.numel(), parts * num_features))
    sort_columns[(num_features, parts)](
        ids, columns, first_row, num_rows, column_order, bad, request_buffer, num_samples, num_features, ids.shape[1],
        keys, order, firsts, LAST=_last(keys), PARTS=parts, BITS=bits,
        PER_THREAD=max((1 << bits) // (32 * num_warps), 1), num_warps=num_warps,
    )  # fmt: skip
    return order, firsts


def scatter(
    keys: Tensor, lookups: Tensor, firsts: Tensor, bad: Tensor, counts_on_host: Tensor, request_buffer: Tensor,
    out: tuple[Tensor, ...], union: UnionArrays,
) -> None:  # fmt: skip
    """Write the unique rows of several parts whose columns are sorted, and of their union."""
    rows, counts_on_device, inverse, order, starts, block_rows = out
    parts = union.num_parts
    num_columns = firsts.numel() // parts
    num_samples = keys.numel() // firsts.numel()
    bits = bits_of(num_samples)
    width = 1 << bits
    below, new_to, num_new = (
        firsts.new_empty(length) for length in (parts * keys.numel(), keys.numel(), firsts.numel())
    )
    grid, num_warps = (num_columns, parts), max(width // _SAMPLES_PER_WARP, 1)
    compare_parts[grid](
        keys, num_samples, below, new_to, num_new, LAST=_last(keys), PARTS=parts, BITS=bits, num_warps=num_warps
    )
    scatter_columns[grid](
        keys, lookups, firsts, below, new_to, num_new, bad, counts_on_host, request_buffer, num_samples, num_columns,
        rows, counts_on_device, inverse, order, starts, block_rows, rows.stride(0), block_rows.stride(0),
        union.rows, union.starts, union.counts_on_device, union.counts_on_host, union.in_union, union.rows.stride(0),
        LAST=_last(keys), PARTS=parts, BLOCK=width,
        # With a chunk as long as the block, Triton gives both the same layout, which costs many barriers.
        CHUNK=2 * _CHUNK if width == _CHUNK else _CHUNK,
        PER_BLOCK_ROW=LOOKUPS_PER_BLOCK, num_warps=num_warps,
    )  # fmt: skip


def _last(keys: Tensor) -> int:
    """The key of a lookup without a row, which is sorted behind all others."""
    return torch.iinfo(keys.dtype).max
