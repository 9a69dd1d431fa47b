"""What the kernels share that walk over a sorted batch in blocks."""

import triton
import triton.language as tl

from hotrows.ops.rows import NO_ROW

_NO_ROW = tl.constexpr(NO_ROW)


@triton.jit
def neighbours(ordered, position, num_lookups, LAST: tl.constexpr):
    """The row at each position, LAST behind the last lookup, and the row at the position before it."""
    row = tl.load(ordered + position, mask=position < num_lookups, other=LAST)
    before = tl.load(ordered + position - 1, mask=(position > 0) & (position <= num_lookups), other=_NO_ROW)
    return row, before


@triton.jit
def lookups_at(sorted_order, position, num_lookups, per_part):
    """The lookup at each position, its part, and the part of the lookup before it."""
    lookup = tl.load(sorted_order + position, mask=position < num_lookups, other=0).to(tl.int32)
    before = tl.load(sorted_order + position - 1, mask=(position > 0) & (position <= num_lookups), other=0).to(tl.int32)
    return lookup, lookup // per_part, before // per_part


@triton.jit
def sums(counts, num_blocks, block, CHUNK: tl.constexpr):
    """The sum of the counts of all blocks before this one, and the sum over all blocks."""
    before = tl.zeros([], tl.int32)
    total = tl.zeros([], tl.int32)
    start = tl.zeros([], tl.int32)
    while start < num_blocks:
        other = start + tl.arange(0, CHUNK)
        count = tl.load(counts + other, mask=other < num_blocks, other=0)
        total += tl.sum(count, 0)
        before += tl.sum(tl.where(other < block, count, 0), 0)
        start += CHUNK
    return before, total


@triton.jit
def count_parts(part_counts, num_blocks, part, inside, first, PARTS: tl.constexpr):
    """For each part: how many lookups this block has, and how many of them are the first of their row in the part."""
    for each in tl.static_range(PARTS):
        mine = inside & (part == each)
        tl.store(part_counts + 2 * each * num_blocks, tl.sum(mine.to(tl.int32), 0))
        tl.store(part_counts + (2 * each + 1) * num_blocks, tl.sum((mine & first).to(tl.int32), 0))
