"""Gradient add-up in Triton: a segment sum on two levels, without atomics, so that its bits repeat.

The sorted lookups are cut into blocks of fixed length. A block sums each row's lookups in it; the sum goes to the
row's place in the answer from the block in which the row begins, to the block's own place in `carried` from a block
that only continues it. Then every row that reaches beyond the block it begins in collects what was carried.
"""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 16  # lookups; with one warp and 128 words the sums stay in registers
_WORDS = 128  # at most, of a gradient in one program
_COLLECT = 32  # blocks collected at a time


@triton.jit(do_not_specialize=["num_blocks"])
def _first_rows(starts, num, num_blocks, first_row, BLOCK: tl.constexpr, LANES: tl.constexpr):
    """The row that each block's first lookup belongs to, by bisection of `starts`."""
    block = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    low = tl.zeros([LANES], tl.int32)
    high = tl.zeros([LANES], tl.int32) + tl.maximum(tl.load(num) - 1, 0)
    while tl.max(high - low, 0) > 0:
        middle = (low + high + 1) // 2
        reached = tl.load(starts + middle) <= block * BLOCK
        low = tl.where(reached, middle, low)
        high = tl.where(reached, high, middle - 1)
    tl.store(first_row + block, low, mask=block < num_blocks)


@triton.jit
def _add_unless_begun(left_sum, left_begun, right_sum, right_begun):
    return tl.where(right_begun > 0, right_sum, left_sum + right_sum), left_begun | right_begun


@triton.jit
def _sum_blocks(
    grad,
    order,
    starts,
    num,
    bag_of,
    scale,
    winner,
    first_row,
    carried,
    answer,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    WORDS: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    num_rows = tl.load(num)
    position = block * BLOCK + tl.arange(0, BLOCK)
    inside = position < tl.load(starts + num_rows)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)[None, :]
    wanted = inside[:, None] & (word < DIM)

    lookup = tl.load(order + position, mask=inside, other=0)
    bag = lookup
    if bag_of is not None:
        bag = tl.load(bag_of + lookup, mask=inside, other=0)
    source = bag.to(tl.int64)[:, None] * DIM + word
    value = tl.load(grad + source, mask=wanted, other=0.0)
    if winner is not None:
        value = tl.where(tl.load(winner + source, mask=wanted, other=-1) == lookup[:, None], value, 0.0)
    if scale is not None:
        value *= tl.load(scale + lookup, mask=inside, other=0.0)[:, None]

    # rows are not empty, so no more than BLOCK can begin here after the first
    first = tl.load(first_row + block)
    after = first + 1 + tl.arange(0, BLOCK)
    start = tl.load(starts + after, mask=after <= num_rows, other=2147483647)[None, :]
    row = first + tl.sum((start <= position[:, None]).to(tl.int32), 1)
    begins = tl.sum((start == position[:, None]).to(tl.int32), 1)
    ends = tl.sum((start == position[:, None] + 1).to(tl.int32), 1)
    last = inside & ((ends > 0) | (position == block * BLOCK + BLOCK - 1))
    continued = (row == first) & (tl.load(starts + first) < block * BLOCK)

    begun = begins[:, None] + tl.zeros([BLOCK, WORDS], tl.int32)
    total, _ = tl.associative_scan((value, begun), 0, _add_unless_begun)
    target = answer + row.to(tl.int64)[:, None] * DIM + word
    tl.store(target, total, mask=wanted & (last & ~continued)[:, None])
    target = carried + (block * DIM + tl.zeros([BLOCK], tl.int64))[:, None] + word
    tl.store(target, total, mask=wanted & (last & continued)[:, None])


@triton.jit
def _collect(
    starts,
    first_row,
    carried,
    answer,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    WORDS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """The program of block b > 0 is responsible for a row that begins in block b - 1 and continues in block b."""
    block = tl.program_id(0).to(tl.int64) + 1
    row = tl.load(first_row + block).to(tl.int64)
    begin = tl.load(starts + row)
    end = tl.load(starts + row + 1)
    if (begin < block * BLOCK) & (begin >= (block - 1) * BLOCK) & (end > block * BLOCK):
        word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
        total = tl.zeros([WORDS], tl.float32)
        num_blocks = tl.cdiv(end, BLOCK).to(tl.int64)
        at = block
        while at < num_blocks:
            part = at + tl.arange(0, AT_ONCE)[:, None]
            there = (part < num_blocks) & (word < DIM)[None, :]
            total += tl.sum(tl.load(carried + part * DIM + word[None, :], mask=there, other=0.0), 0)
            at += AT_ONCE
        target = answer + row * DIM + word
        tl.store(target, tl.load(target, mask=word < DIM) + total, mask=word < DIM)


def add_up(
    grad: Tensor,
    order: Tensor,
    starts: Tensor,
    num: Tensor,
    bag_of: Tensor | None,
    scale: Tensor | None,
    winner: Tensor | None,
) -> Tensor:
    num_lookups, dim = order.numel(), grad.shape[1]
    answer = grad.new_empty(num_lookups, dim)
    if num_lookups == 0:
        return answer
    num_blocks = triton.cdiv(num_lookups, _BLOCK)
    first_row = order.new_empty(num_blocks)
    carried = grad.new_empty(num_blocks, dim)
    words = min(triton.next_power_of_2(dim), _WORDS)
    num_pieces = triton.cdiv(dim, words)
    _first_rows[(triton.cdiv(num_blocks, 128),)](starts, num, num_blocks, first_row, BLOCK=_BLOCK, LANES=128)
    _sum_blocks[(num_blocks, num_pieces)](
        grad,
        order,
        starts,
        num,
        bag_of,
        scale,
        winner,
        first_row,
        carried,
        answer,
        DIM=dim,
        BLOCK=_BLOCK,
        WORDS=words,
        num_warps=1,
    )
    if num_blocks > 1:
        _collect[(num_blocks - 1, num_pieces)](
            starts, first_row, carried, answer, DIM=dim, BLOCK=_BLOCK, WORDS=words, AT_ONCE=_COLLECT, num_warps=2
        )
    return answer
