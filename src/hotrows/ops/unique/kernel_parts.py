"""Unique rows of several batches that are sorted as one: of each batch as if it were alone, and of their union.

The batches are the parts of a request buffer.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.rows import NO_ROW
from hotrows.ops.unique.kernel_in_order import lookups_at, neighbours, sums

_NO_ROW = tl.constexpr(NO_ROW)
MAX_PARTS = 4
# The counts of all parts are packed into one number of 64 bits, 16 bits for each part.
_FIELD, _FIELD_MASK = tl.constexpr(16), tl.constexpr((1 << 16) - 1)


class UnionArrays(NamedTuple):
    """The unique rows of the union of the parts of each of P request buffers."""

    rows: Tensor  # int64 [P, ...]
    starts: Tensor  # int32 [P, ...]; the difference of two neighbours is how many lookups a row has in all parts
    counts_on_device: Tensor  # int32 [P, 2], the number of rows first
    counts_on_host: Tensor  # int32 [P, 2], the same in host memory
    in_union: Tensor  # int32 [P · parts, ...], the position of each unique row of a part in the union

    @property
    def num_parts(self) -> int:
        return len(self.in_union) // len(self.rows)


@triton.jit(do_not_specialize=["num_lookups", "num_blocks", "per_block"])
def scatter_parts(
    ordered, sorted_order, firsts, part_counts, bad, counts_on_host, request_buffer, num_lookups, num_blocks, per_block,
    rows, counts_on_device, inverse, order, starts, block_rows, stride, block_stride,
    union_rows, union_starts, union_counts_on_device, union_counts_on_host, in_union, union_stride,
    LAST: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, PER_BLOCK_ROW: tl.constexpr,
):  # fmt: skip
    """As `_scatter` does for one batch: the unique rows of the union, and those of each part as if it were alone."""
    buffer = tl.load(request_buffer).to(tl.int64)
    union_rows += buffer * union_stride
    union_starts += buffer * union_stride
    first_part = buffer * PARTS
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

    before_this, num_rows = sums(firsts, num_blocks, block, CHUNK)
    unique = before_this + tl.cumsum(first.to(tl.int32), 0) - 1
    tl.store(union_rows + unique, row.to(tl.int64), mask=first)
    tl.store(union_starts + unique, position.to(tl.int32), mask=first)
    beyond = inside & (position >= num_rows)
    tl.store(union_rows + position, tl.full([BLOCK], _NO_ROW, tl.int64), mask=beyond)
    tl.store(union_starts + position, tl.zeros([BLOCK], tl.int32) + num_lookups, mask=beyond)
    tl.store(union_starts + num_lookups, num_lookups, mask=block == 0)
    tl.store(union_counts_on_device + buffer * 2, num_rows, mask=block == 0)
    tl.store(union_counts_on_host + buffer * 2, num_rows, mask=block == 0)

    # How many lookups, and how many rows, of a lookup's own part come before it.
    shift = part.to(tl.int64) * _FIELD
    one = tl.full([BLOCK], 1, tl.int64) << shift
    lookups_here = tl.cumsum(tl.where(inside, one, 0), 0) >> shift
    rows_here = tl.cumsum(tl.where(first_in_part, one, 0), 0) >> shift
    own_position = (lookups_here & _FIELD_MASK).to(tl.int32) - 1
    own_unique = (rows_here & _FIELD_MASK).to(tl.int32) - 1
    own_rows = tl.zeros([BLOCK], tl.int32)
    used = tl.zeros([BLOCK], tl.int32)
    for each in tl.static_range(PARTS):
        lookups_before, _ = sums(part_counts + 2 * each * num_blocks, num_blocks, block, CHUNK)
        rows_before, rows_of_part = sums(part_counts + (2 * each + 1) * num_blocks, num_blocks, block, CHUNK)
        what_is_bad = tl.load(bad + (first_part + each) * 2)
        is_used = (what_is_bad == 0).to(tl.int32)  # a batch with a bad id has no rows at all
        rows_of_part *= is_used
        mine = part == each
        own_position = tl.where(mine, own_position + lookups_before, own_position)
        own_unique = tl.where(mine, own_unique + rows_before, own_unique)
        own_rows = tl.where(mine, rows_of_part, own_rows)
        used = tl.where(mine, is_used, used)
        tl.store(starts + (first_part + each) * stride + per_part, per_part * is_used, mask=block == 0)
        tl.store(counts_on_device + (first_part + each) * 2, rows_of_part, mask=block == 0)
        tl.store(counts_on_host + (first_part + each) * 2, rows_of_part, mask=block == 0)
        tl.store(counts_on_host + (first_part + each) * 2 + 1, what_is_bad, mask=block == 0)

    own = (first_part + part) * stride
    first_in_part = first_in_part & (used > 0)
    own_lookup = lookup - part * per_part
    tl.store(order + own + own_position, own_lookup, mask=inside)
    tl.store(inverse + own + own_lookup, tl.where(used > 0, own_unique, -1), mask=inside)
    tl.store(rows + own + own_unique, row.to(tl.int64), mask=first_in_part)
    tl.store(starts + own + own_unique, own_position, mask=first_in_part)
    tl.store(in_union + own + own_unique, unique, mask=first_in_part)
    beyond = inside & (own_position >= own_rows)
    tl.store(rows + own + own_position, tl.full([BLOCK], _NO_ROW, tl.int64), mask=beyond)
    tl.store(starts + own + own_position, per_part * used, mask=beyond)
    begins = inside & (own_position % PER_BLOCK_ROW == 0)
    block_row = (first_part + part) * block_stride + own_position // PER_BLOCK_ROW
    tl.store(block_rows + block_row, tl.maximum(own_unique, 0), mask=begins)
