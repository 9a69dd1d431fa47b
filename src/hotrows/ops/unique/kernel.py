"""Unique rows in Triton: count the lookups of each sorted block that are the first of their row, then scatter by them.

Several batches can be sorted as one. A stable sort keeps the lookups of a row in their order, so those of the first
batch come before those of the second. One walk therefore gives the unique rows of each batch, and of their union.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.rows import LOOKUPS_PER_BLOCK, NO_ROW
from hotrows.ops.unique import kernel_columns
from hotrows.ops.unique.kernel_in_order import count_parts, lookups_at, neighbours, sums
from hotrows.ops.unique.kernel_parts import MAX_PARTS, UnionArrays, scatter_parts

_NO_ROW = tl.constexpr(NO_ROW)
_BLOCK, _NUM_WARPS = 1024, 4
_ALIGNMENT = 16  # elements
MAX_SAMPLES = 2048  # of a batch whose columns are sorted one by one


@triton.jit(do_not_specialize=["num_lookups"])  # otherwise batches of another length are compiled for again
def _make_keys(
    ids, columns, first_row, num_rows, keys, bad, request_buffer, num_lookups, num_features, stride,
    LAST: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The row of every id of a batch [B, F]. An id without a row has LAST, and its position is noted in `bad`."""
    bad += tl.load(request_buffer) * (2 * PARTS)
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = position < num_lookups
    feature = position % num_features
    source = position
    if columns is not None:
        source = position // num_features * stride + tl.load(columns + feature, mask=inside, other=0)
    found = tl.load(ids + source, mask=inside, other=0).to(tl.int64)
    good = (found >= 0) & (found < tl.load(num_rows + feature, mask=inside, other=1))
    row = found + tl.load(first_row + feature, mask=inside, other=0)
    tl.store(keys + position, tl.where(good, row, LAST).to(keys.dtype.element_ty), mask=inside)
    per_part = num_lookups // PARTS
    for part in tl.static_range(PARTS):
        # The first bad position has the most lookups behind it.
        left = (part + 1) * per_part - position
        most = tl.max(tl.where(inside & ~good & (left > 0) & (left <= per_part), left, 0), 0)
        if most > 0:
            tl.atomic_max(bad + 2 * part, most.to(tl.int32), sem="relaxed")


@triton.jit(do_not_specialize=["num_lookups"])
def _count_firsts(
    ordered, sorted_order, num_lookups, firsts, num_valid, part_counts,
    LAST: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the lookups of each block that are the first of their row, and the lookups that have a row."""
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, before = neighbours(ordered, position, num_lookups, LAST)
    first = (row != before) & (row != LAST)
    tl.store(firsts + tl.program_id(0), tl.sum(first.to(tl.int32), 0))
    if PARTS > 1:
        _, part, part_before = lookups_at(sorted_order, position, num_lookups, num_lookups // PARTS)
        first_in_part = first | ((part != part_before) & (row != LAST))
        count_parts(
            part_counts + tl.program_id(0), tl.num_programs(0), part, position < num_lookups, first_in_part, PARTS
        )
    # Exactly one position is the first without a row, at the latest the one behind the end, so there is one write.
    border = (row == LAST) & (before != LAST) & (position <= num_lookups)
    tl.store(num_valid + tl.zeros_like(position), position.to(tl.int32), mask=border)


@triton.jit(do_not_specialize=["num_lookups", "num_blocks", "per_block"])
def _scatter(
    ordered,
    sorted_order,
    firsts,
    num_valid,
    bad,
    counts_on_host,
    request_buffer,
    num_lookups,
    num_blocks,
    per_block,
    rows,
    num,
    inverse,
    order,
    starts,
    block_rows,
    stride,
    block_stride,
    LAST: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    PER_BLOCK_ROW: tl.constexpr,
):
    """Write the unique rows of one sorted batch."""
    if request_buffer is not None:
        buffer = tl.load(request_buffer).to(tl.int64)
        bad += buffer * 2
        counts_on_host += buffer * 2
        num += buffer * 2
        rows += buffer * stride
        inverse += buffer * stride
        order += buffer * stride
        starts += buffer * stride
        block_rows += buffer * block_stride
    block = tl.program_id(0)
    offset = tl.arange(0, BLOCK)
    position = block.to(tl.int64) * per_block + offset
    inside = (offset < per_block) & (position < num_lookups)
    before_this, num_rows = sums(firsts, num_blocks, block, CHUNK)
    valid = num_lookups if num_valid is None else tl.load(num_valid)
    row, before = neighbours(ordered, position, num_lookups, LAST)
    first = inside & (row != before) & (row != LAST)
    unique = before_this + tl.cumsum(first.to(tl.int32), 0) - 1
    if bad is not None:
        used = (tl.load(bad) == 0).to(tl.int32)  # a batch with a bad id has no rows at all
        num_rows *= used
        valid *= used
        first = first & (used > 0)

    lookup = tl.load(sorted_order + position, mask=inside, other=0)
    tl.store(order + position, lookup.to(tl.int32), mask=inside)
    tl.store(inverse + lookup, tl.where(position < valid, unique, -1), mask=inside)
    tl.store(rows + unique, row.to(tl.int64), mask=first)
    tl.store(starts + unique, position.to(tl.int32), mask=first)
    beyond = inside & (position >= num_rows)
    tl.store(rows + position, tl.full([BLOCK], _NO_ROW, tl.int64), mask=beyond)
    tl.store(starts + position, tl.zeros([BLOCK], tl.int32) + valid, mask=beyond)
    tl.store(starts + num_lookups, valid, mask=block == 0)
    begins = inside & (position % PER_BLOCK_ROW == 0)
    tl.store(block_rows + position // PER_BLOCK_ROW, tl.maximum(unique, 0), mask=begins)
    tl.store(num, num_rows, mask=block == 0)
    if counts_on_host is not None:
        tl.store(counts_on_host, num_rows, mask=block == 0)
        tl.store(counts_on_host + 1, tl.load(bad), mask=block == 0)


def unique_rows(rows: Tensor) -> tuple[Tensor, ...]:
    out = empty(rows.numel(), rows.device)
    if rows.numel() == 0:
        out[1].zero_()
        out[4].zero_()
        return out
    last = torch.iinfo(rows.dtype).max  # sorts lookups without a row behind all others
    _unique_keys(rows.masked_fill(rows < 0, last), None, None, None, out)
    return out


def column_order(first_row: Tensor, num_rows: Tensor, num_samples: int) -> Tensor | None:
    """What `unique_ids` needs to sort columns one by one: the columns in the order in which their tables begin.

    Args:
        num_samples: samples of a batch, or of each of several.

    Returns:
        None if the columns cannot be sorted one by one.
    """
    first, length = first_row.tolist(), num_rows.tolist()
    order = sorted(range(len(first)), key=first.__getitem__)
    if any(first[one] + length[one] > first[other] for one, other in pairwise(order)):
        return None  # two columns look up the same table
    if num_samples > MAX_SAMPLES or max(length) >= 1 << (63 - kernel_columns.bits_of(num_samples)):
        return None
    return torch.tensor(order, dtype=torch.int32, device=first_row.device)


def unique_ids(
    ids: Tensor,
    columns: Tensor | None,
    first_row: Tensor,
    num_rows: Tensor,
    column_order: Tensor | None,
    key_dtype: torch.dtype,
    counts_on_device: Tensor,
    counts_on_host: Tensor,
    request_buffer: Tensor,
    out: tuple[Tensor, ...],
    union: UnionArrays | None = None,
) -> None:
    """Write the unique rows of ids [B, F] into one of P request buffers.

    With `union`, the ids are those of several batches, one below the other, which are the parts of a request buffer.
    For each part this writes what it would write for the batch alone. Arrays of parts have P · parts rows, the parts of
    a request buffer one after the other.

    Args:
        columns: int64 [f], which columns of the ids to take; None for all.
        first_row, num_rows: int64 [f], the first row and the number of rows of each column's table.
        column_order: from the function of that name, to sort columns one by one; None to sort all lookups together.
        key_dtype: int32 if all rows fit it.
        counts_on_device: int32 [P, 2], zero. It becomes the number of unique rows, and the number of lookups less the
            position of the first id without a row (0 if every id has a row).
        counts_on_host: int32 [P, 2], the same in host memory.
        request_buffer: int32 [1], which of the P.
        out: [P, ...] each, from `allocate_batches`.
    """
    num_samples, stride = ids.shape
    num_features = first_row.numel()
    num_lookups = num_samples * num_features
    keys = torch.empty(num_lookups, dtype=key_dtype, device=ids.device)
    last = torch.iinfo(key_dtype).max
    rows, *others = out
    bad, out = counts_on_device.view(-1)[1:], (rows, counts_on_device, *others)
    parts = 1 if union is None else union.num_parts
    if column_order is None:
        _make_keys[(triton.cdiv(num_lookups, _BLOCK),)](
            ids, columns, first_row, num_rows, keys, bad, request_buffer, num_lookups, num_features, stride,
            LAST=last, PARTS=parts, BLOCK=_BLOCK, num_warps=_NUM_WARPS,
        )  # fmt: skip
        _unique_keys(keys, bad, counts_on_host, request_buffer, out, union)
        return
    order, firsts = kernel_columns.sort(
        ids, columns, first_row, num_rows, column_order, bad, request_buffer, keys, parts
    )  # fmt: skip
    if union is not None:
        kernel_columns.scatter(keys, order, firsts, bad, counts_on_host, request_buffer, out, union)
        return
    width = 1 << kernel_columns.bits_of(num_samples)
    blocks = _Blocks(keys, order, firsts, None, None, num_samples, width)
    _scatter_blocks(blocks, bad, counts_on_host, request_buffer, out, None)


def empty(num_lookups: int, device: torch.device) -> tuple[Tensor, ...]:
    """Arrays for the unique rows of one batch."""
    lengths = (1, num_lookups, num_lookups, num_lookups + 1, triton.cdiv(num_lookups, LOOKUPS_PER_BLOCK))
    rows = torch.empty(num_lookups, dtype=torch.int64, device=device)
    return rows, *(torch.empty(length, dtype=torch.int32, device=device) for length in lengths)


def allocate_batches(num: int, num_lookups: int, device: torch.device) -> tuple[Tensor, ...]:
    """Arrays for the unique rows of `num` batches, [num, ...] each: rows, inverse, order, starts and block_rows.

    Each batch's part of an array is aligned as memory of its own is.
    """

    length = num_lookups + 1  # of `starts`; one stride for all arrays
    blocks = triton.cdiv(num_lookups, LOOKUPS_PER_BLOCK)
    dtypes = (torch.int64, torch.int32, torch.int32, torch.int32)
    return *(_aligned(num, length, dtype, device) for dtype in dtypes), _aligned(num, blocks, torch.int32, device)


def allocate_unions(
    num: int, parts: int, num_lookups: int, device: torch.device, counts_on_host: Tensor
) -> UnionArrays:
    """Arrays for the unions of `num` request buffers, whose parts have `num_lookups` lookups each."""
    length = parts * num_lookups + 1
    return UnionArrays(
        rows=_aligned(num, length, torch.int64, device),
        starts=_aligned(num, length, torch.int32, device),
        counts_on_device=torch.zeros(num, 2, dtype=torch.int32, device=device),
        counts_on_host=counts_on_host,
        in_union=_aligned(num * parts, num_lookups + 1, torch.int32, device),
    )


def _aligned(num: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(num, triton.cdiv(length, _ALIGNMENT) * _ALIGNMENT, dtype=dtype, device=device)


class _Blocks(NamedTuple):
    """A sorted batch in blocks."""

    rows: Tensor  # in ascending order
    lookups: Tensor  # the lookups of these rows
    firsts: Tensor  # for each block, how many lookups are the first of their row
    num_valid: Tensor | None  # lookups that have a row; None if all have
    part_counts: Tensor | None  # see `count_parts`
    per_block: int
    width: int  # a power of two, at least `per_block`


def _unique_keys(
    keys: Tensor,
    bad: Tensor | None,
    counts_on_host: Tensor | None,
    request_buffer: Tensor | None,
    out: tuple[Tensor, ...],
    union: UnionArrays | None = None,
) -> None:
    """Sort the keys of all lookups together, and write their unique rows."""
    num_lookups = keys.numel()
    ordered, order = torch.sort(keys, stable=True)
    num_blocks = triton.cdiv(num_lookups + 1, _BLOCK)  # the first position without a row may be behind the end
    parts = 1 if union is None else union.num_parts
    firsts, num_valid = (out[1].new_empty(length) for length in (num_blocks, 1))
    part_counts = None if union is None else out[1].new_empty(2 * parts * num_blocks)
    _count_firsts[(num_blocks,)](
        ordered, order, num_lookups, firsts, num_valid, part_counts,
        LAST=torch.iinfo(keys.dtype).max, PARTS=parts, BLOCK=_BLOCK, num_warps=_NUM_WARPS,
    )  # fmt: skip
    blocks = _Blocks(ordered, order, firsts, num_valid, part_counts, _BLOCK, _BLOCK)
    _scatter_blocks(blocks, bad, counts_on_host, request_buffer, out, union)


def _scatter_blocks(
    blocks: _Blocks,
    bad: Tensor | None,
    counts_on_host: Tensor | None,
    request_buffer: Tensor | None,
    out: tuple[Tensor, ...],
    union: UnionArrays | None,
) -> None:
    rows, num, inverse, order, starts, block_rows = out
    num_blocks, width = blocks.firsts.numel(), blocks.width
    # With a chunk as long as the block, Triton gives both the same layout, which costs 24 barriers.
    chunk = 2 * width
    last = torch.iinfo(blocks.rows.dtype).max
    num_warps = max(_NUM_WARPS * width // _BLOCK, 1)
    if union is not None:
        assert union.num_parts <= MAX_PARTS
        scatter_parts[(num_blocks,)](
            blocks.rows, blocks.lookups, blocks.firsts, blocks.part_counts, bad, counts_on_host, request_buffer,
            blocks.rows.numel(), num_blocks, blocks.per_block, rows, num, inverse, order, starts, block_rows,
            rows.stride(0), block_rows.stride(0), union.rows, union.starts, union.counts_on_device,
            union.counts_on_host, union.in_union, union.rows.stride(0),
            LAST=last, PARTS=union.num_parts, BLOCK=width, CHUNK=chunk, PER_BLOCK_ROW=LOOKUPS_PER_BLOCK,
            num_warps=num_warps,
        )  # fmt: skip
        return
    _scatter[(num_blocks,)](
        blocks.rows, blocks.lookups, blocks.firsts, blocks.num_valid, bad, counts_on_host, request_buffer,
        blocks.rows.numel(), num_blocks, blocks.per_block, rows, num, inverse, order, starts, block_rows,
        rows.stride(0), block_rows.stride(0),
        LAST=last, BLOCK=width, CHUNK=chunk, PER_BLOCK_ROW=LOOKUPS_PER_BLOCK, num_warps=num_warps,
    )  # fmt: skip
