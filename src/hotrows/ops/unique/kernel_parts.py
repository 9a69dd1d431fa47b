"""Distinct rows of several batches that are sorted as one: of each as if it were alone, and of all together."""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.rows import NO_ROW
from hotrows.ops.unique.kernel_in_order import lookups_at, neighbours, sums

_NO_ROW = tl.constexpr(NO_ROW)
MOST_PARTS = 4
_FIELD, _FIELD_MASK = tl.constexpr(16), tl.constexpr((1 << 16) - 1)  # of the counts of all parts in one number


class CoalescedRows(NamedTuple):
    """The distinct rows of several batches together, at each of P places; the batches themselves are its parts."""

    rows: Tensor  # int64 [P, ...]
    starts: Tensor  # int32 [P, ...]: from one to the next, how many lookups a row has in all parts
    noted: Tensor  # int32 [P, 2], the number of rows first
    told: Tensor  # int32 [P, 2], on the host
    of_part: Tensor  # int32 [P · parts, ...], for each distinct row of a part, which of all it is

    @property
    def num_parts(self) -> int:
        return len(self.of_part) // len(self.rows)


@triton.jit(do_not_specialize=["num_lookups", "num_blocks", "per_block"])
def scatter_parts(
    ordered, sorted_order, firsts, in_parts, bad, told, place, num_lookups, num_blocks, per_block,
    rows, num, inverse, order, starts, block_rows, stride, block_stride,
    all_rows, all_starts, all_noted, all_told, in_all, all_stride,
    LAST: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, PER_BLOCK_ROW: tl.constexpr,
):  # fmt: skip
    """As `_scatter`, for the rows of all parts together, and for each part as if it were alone."""
    at = tl.load(place).to(tl.int64)
    all_rows += at * all_stride
    all_starts += at * all_stride
    at_part = at * PARTS
    block = tl.program_id(0)
    offset = tl.arange(0, BLOCK)
    position = block.to(tl.int64) * per_block + offset
    inside = (offset < per_block) & (position < num_lookups)
    per_part = num_lookups // PARTS
    row, before = neighbours(ordered, position, num_lookups, LAST)
    lookup, part, part_before = lookups_at(sorted_order, position, num_lookups, per_part)
    real = inside & (row != LAST)
    first = real & (row != before)
    first_in_part = real & ((row != before) | (part != part_before))

    before_this, num_rows = sums(firsts, num_blocks, block, AT_ONCE)
    unique = before_this + tl.cumsum(first.to(tl.int32), 0) - 1
    tl.store(all_rows + unique, row.to(tl.int64), mask=first)
    tl.store(all_starts + unique, position.to(tl.int32), mask=first)
    beyond = inside & (position >= num_rows)
    tl.store(all_rows + position, tl.full([BLOCK], _NO_ROW, tl.int64), mask=beyond)
    tl.store(all_starts + position, tl.zeros([BLOCK], tl.int32) + num_lookups, mask=beyond)
    tl.store(all_starts + num_lookups, num_lookups, mask=block == 0)
    tl.store(all_noted + at * 2, num_rows, mask=block == 0)
    tl.store(all_told + at * 2, num_rows, mask=block == 0)

    # of a lookup's own part: how many lookups, and how many rows, come before it
    shift = part.to(tl.int64) * _FIELD
    one = tl.full([BLOCK], 1, tl.int64) << shift
    lookups_here = tl.cumsum(tl.where(inside, one, 0), 0) >> shift
    rows_here = tl.cumsum(tl.where(first_in_part, one, 0), 0) >> shift
    own_position = (lookups_here & _FIELD_MASK).to(tl.int32) - 1
    own_unique = (rows_here & _FIELD_MASK).to(tl.int32) - 1
    own_rows = tl.zeros([BLOCK], tl.int32)
    used = tl.zeros([BLOCK], tl.int32)
    for each in tl.static_range(PARTS):
        lookups_before, _ = sums(in_parts + 2 * each * num_blocks, num_blocks, block, AT_ONCE)
        rows_before, rows_of_part = sums(in_parts + (2 * each + 1) * num_blocks, num_blocks, block, AT_ONCE)
        what_is_bad = tl.load(bad + (at_part + each) * 2)
        is_used = (what_is_bad == 0).to(tl.int32)  # nothing of a bad batch is
        rows_of_part *= is_used
        mine = part == each
        own_position = tl.where(mine, own_position + lookups_before, own_position)
        own_unique = tl.where(mine, own_unique + rows_before, own_unique)
        own_rows = tl.where(mine, rows_of_part, own_rows)
        used = tl.where(mine, is_used, used)
        tl.store(starts + (at_part + each) * stride + per_part, per_part * is_used, mask=block == 0)
        tl.store(num + (at_part + each) * 2, rows_of_part, mask=block == 0)
        tl.store(told + (at_part + each) * 2, rows_of_part, mask=block == 0)
        tl.store(told + (at_part + each) * 2 + 1, what_is_bad, mask=block == 0)

    own = (at_part + part) * stride
    first_in_part = first_in_part & (used > 0)
    own_lookup = lookup - part * per_part
    tl.store(order + own + own_position, own_lookup, mask=inside)
    tl.store(inverse + own + own_lookup, tl.where(used > 0, own_unique, -1), mask=inside)
    tl.store(rows + own + own_unique, row.to(tl.int64), mask=first_in_part)
    tl.store(starts + own + own_unique, own_position, mask=first_in_part)
    tl.store(in_all + own + own_unique, unique, mask=first_in_part)
    beyond = inside & (own_position >= own_rows)
    tl.store(rows + own + own_position, tl.full([BLOCK], _NO_ROW, tl.int64), mask=beyond)
    tl.store(starts + own + own_position, per_part * used, mask=beyond)
    begins = inside & (own_position % PER_BLOCK_ROW == 0)
    block_row = (at_part + part) * block_stride + own_position // PER_BLOCK_ROW
    tl.store(block_rows + block_row, tl.maximum(own_unique, 0), mask=begins)
