"""Sums over the lookups of each row in Triton, and what is done with a finished sum: an optimizer step, or a store.

The sums are made on three levels, without atomics, so that their bits repeat. The sorted lookups are cut into blocks,
the blocks into stretches, both of fixed length. A block adds up each row's lookups in it, one after the other. A row
that lies within a block is finished there. Of one that does not, the block in which it begins leaves the `head`, every
later block the part that it `carried`. A stretch adds these up in the same way, and finishes what lies within it. What
is left are the few rows that are longer than a stretch.

`ops.add_up` is made of the same kernels with RULE "sum", which stores the sums: there the bits cannot differ. For the
rest see `ops.row_update.kernel`.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.row_optimizer.kernel import (
    MOST_WORDS,
    NUM_NUMBERS,
    check_rule,
    load_numbers,
    load_record,
    numbers_on,
    row_optimizer,
    step,
    store_record,
    sum_of_squares,
)
from hotrows.ops.rows import LOOKUPS_PER_BLOCK

_BLOCK = LOOKUPS_PER_BLOCK  # lookups
_CHUNK = 16  # lookups of a block whose gradients are loaded together; 32 at most
_STRETCH = 16  # blocks; 32 at most
_AT_ONCE = 16  # stretches of a row that are loaded together
_TOGETHER = {"sum": 16, "sgd": 8, "adagrad": 8, "row_wise_adagrad": 4, "adam": 4}  # records that are loaded together
_WORDS = 128  # at most, of a row in one program; with one warp each thread has four
_TILE = 128  # words in one program, over the blocks of narrow rows


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
def _bits(flags, COUNT: tl.constexpr):
    """bool [units, COUNT] as one number per unit, int64 [units]."""
    return tl.sum(flags.to(tl.int64) << tl.arange(0, COUNT).to(tl.int64)[None, :], 1)


@triton.jit
def _bit(bits, PLACE: tl.constexpr):
    return ((bits >> PLACE) & 1) != 0


@triton.jit
def _finish(
    sums,
    rows,
    finished,
    word,
    target,
    row_slots,
    numbers,
    RULE: tl.constexpr,
    NUMBERS: tl.constexpr,
    DIM: tl.constexpr,
    W: tl.constexpr,
    COUNT: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """What is done with sums [units, words] of rows [units]: COUNT of each, those whose bit in `finished` is set."""
    if RULE == "sum":
        for i in tl.static_range(COUNT):
            at = target + rows[i].to(tl.int64)[:, None] * DIM + word
            tl.store(at, sums[i], mask=_bit(finished, i)[:, None] & (word < DIM))
    else:
        loaded = load_numbers(numbers, NUMBERS)
        slots: tl.tuple = ()
        for i in tl.static_range(COUNT):
            slots += (tl.load(row_slots + rows[i], mask=_bit(finished, i), other=-1).to(tl.int64),)
        for begin in tl.static_range(0, COUNT, TOGETHER):
            if tl.max((finished >> begin) & ((1 << TOGETHER) - 1), 0) != 0:
                # all are loaded before any is stored, for no load passes a store
                olds: tl.tuple = ()
                totals: tl.tuple = ()
                for i in tl.static_range(TOGETHER):
                    slot = slots[begin + i]
                    mask = (slot >= 0)[:, None] & (word < DIM)
                    olds += (load_record(target + slot * W, word, mask, RULE, DIM),)
                    if RULE == "row_wise_adagrad":
                        totals += (tl.load(target + slot * W + DIM, mask=slot >= 0, other=0.0),)
                    else:
                        totals += (0.0,)
                if RULE == "row_wise_adagrad":
                    tl.debug_barrier()  # every warp keeps its own copy of the totals
                for i in tl.static_range(TOGETHER):
                    slot = slots[begin + i]
                    grad = sums[begin + i]
                    mask = (slot >= 0)[:, None] & (word < DIM)
                    total = totals[i]
                    if RULE == "row_wise_adagrad":
                        total += tl.div_rn(sum_of_squares(grad), 1.0 * DIM)
                        tl.store(target + slot * W + DIM, total, mask=slot >= 0)
                    store_record(target + slot * W, word, mask, step(olds[i], total, grad, loaded, RULE), DIM)


@triton.jit
def _gradient(grad, order, bag_of, scale, winner, position, num_lookups, inside, word, DIM: tl.constexpr):
    """What the lookups at some positions give to their rows, [units, words]."""
    lookup = tl.load(order + position, mask=position < num_lookups, other=0)  # before it is known what is inside
    bag = lookup
    if bag_of is not None:
        bag = tl.load(bag_of + lookup, mask=inside, other=0)
    source = bag.to(tl.int64)[:, None] * DIM + word
    wanted = inside[:, None] & (word < DIM)
    value = tl.load(grad + source, mask=wanted, other=0.0).to(tl.float32)
    if winner is not None:
        value = tl.where(tl.load(winner + source, mask=wanted, other=-1) == lookup[:, None], value, 0.0)
    if scale is not None:
        value *= tl.load(scale + lookup, mask=inside, other=0.0)[:, None]
    return value


@triton.jit(do_not_specialize=["num_lookups", "num_blocks"])  # batches of another length must not be compiled for
def _blocks(
    grad,
    order,
    num_lookups,
    bag_of,
    scale,
    winner,
    starts,
    num,
    first_row,
    num_blocks,
    parts,
    target,
    row_slots,
    numbers,
    RULE: tl.constexpr,
    NUMBERS: tl.constexpr,
    DIM: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    TOGETHER: tl.constexpr,
    UNITS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """parts [2, blocks, DIM]: heads, then what was carried."""
    block = tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)[None, :]
    num_rows = tl.load(num)
    begin = block * BLOCK
    left = tl.load(starts + num_rows) - begin  # lookups with a row, from here on
    row = tl.load(first_row + block, mask=block < num_blocks, other=0)
    began_here = tl.load(starts + row) >= begin

    # rows are not empty, so no more than BLOCK of them can end here
    after = row[:, None] + 1 + tl.arange(0, BLOCK)[None, :]
    last = tl.load(starts + after, mask=after <= num_rows, other=2147483647) - begin[:, None] - 1
    ends_here = (last >= 0) & (last < BLOCK)
    ends = tl.sum(ends_here.to(tl.int64) << tl.where(ends_here, last, 0), 1)  # bit i: a row ends with lookup i

    for first in tl.static_range(0, BLOCK, CHUNK):
        values: tl.tuple = ()
        for i in tl.static_range(CHUNK):
            value = _gradient(
                grad, order, bag_of, scale, winner, begin + first + i, num_lookups, first + i < left, word, DIM
            )
            values += (value,)
        sums: tl.tuple = ()
        for i in tl.static_range(CHUNK):
            if first + i == 0:
                total = values[0]
            else:
                total = tl.where(_bit(ends, first + i - 1)[:, None], values[i], total + values[i])
            sums += (total,)
        here = (ends >> first) & ((1 << CHUNK) - 1)
        if tl.max(here, 0) != 0:
            ended_before = (ends & ((1 << first) - 1)) != 0
            first_ends = tl.where(began_here | ended_before, 0, here & -here)  # the bit of a row that began earlier
            at = row + tl.sum((ends_here & (last < first)).to(tl.int32), 1)
            rows: tl.tuple = ()
            for i in tl.static_range(CHUNK):
                place = parts + (num_blocks + block)[:, None] * DIM + word
                tl.store(place, sums[i], mask=_bit(first_ends, i)[:, None] & (word < DIM))
                rows += (at,)
                at += _bit(here, i).to(tl.int32)
            _finish(
                sums, rows, here & ~first_ends, word, target, row_slots, numbers,
                RULE, NUMBERS, DIM, W, CHUNK, TOGETHER,
            )  # fmt: skip
    goes_on = (left >= BLOCK) & ~_bit(ends, BLOCK - 1)
    place = tl.where(began_here | (ends != 0), block, num_blocks + block)
    tl.store(parts + place[:, None] * DIM + word, total, mask=goes_on[:, None] & (word < DIM))


@triton.jit
def _row_across(starts, first_row, block, num_blocks, valid, BLOCK: tl.constexpr):
    """The row at the beginning of a block, whether it began earlier, where it begins and where it ends."""
    inside = (block < num_blocks) & (block * BLOCK < valid)
    row = tl.load(first_row + block, mask=inside, other=0)
    begin = tl.load(starts + row)
    return row, inside & (begin < block * BLOCK), begin, tl.load(starts + row + 1)


@triton.jit(do_not_specialize=["num_blocks", "num_stretches"])
def _stretches(
    starts,
    num,
    first_row,
    num_blocks,
    num_stretches,
    parts,
    long_parts,
    target,
    row_slots,
    numbers,
    RULE: tl.constexpr,
    NUMBERS: tl.constexpr,
    DIM: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    STRETCH: tl.constexpr,
    TOGETHER: tl.constexpr,
    UNITS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """long_parts [2, stretches, DIM]: heads, then what was carried."""
    stretch = tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)[None, :]
    valid = tl.load(starts + tl.load(num))
    begin = stretch * STRETCH * BLOCK
    block = stretch[:, None] * STRETCH + tl.arange(0, STRETCH)[None, :]
    _, across, row_begin, row_end = _row_across(starts, first_row, block, num_blocks, valid, BLOCK)
    _, leaves, next_begin, _ = _row_across(starts, first_row, block + 1, num_blocks, valid, BLOCK)
    ends = across & (row_end <= (block + 1) * BLOCK)
    began_here = row_begin >= begin[:, None]
    carried = _bits(across, STRETCH)
    heads = _bits(leaves & (next_begin >= block * BLOCK), STRETCH)
    finished = _bits(ends & began_here, STRETCH)
    first_ends = _bits(ends & ~began_here, STRETCH)

    values: tl.tuple = ()
    for i in tl.static_range(STRETCH):
        at = (stretch * STRETCH + i)[:, None]
        head = tl.load(parts + at * DIM + word, mask=_bit(heads, i)[:, None] & (word < DIM), other=0.0)
        at += num_blocks
        value = tl.load(parts + at * DIM + word, mask=_bit(carried, i)[:, None] & (word < DIM), other=0.0)
        values += ((value, head),)
    sums: tl.tuple = ()
    for i in tl.static_range(STRETCH):
        if i == 0:
            total = values[0][0]
        else:
            total = tl.where(_bit(heads, i - 1)[:, None], values[i - 1][1], total) + values[i][0]
        sums += (total,)
    if tl.max(finished | first_ends, 0) != 0:
        rows: tl.tuple = ()
        for i in tl.static_range(STRETCH):
            place = long_parts + (num_stretches + stretch)[:, None] * DIM + word
            tl.store(place, sums[i], mask=_bit(first_ends, i)[:, None] & (word < DIM))
            rows += (tl.load(first_row + stretch * STRETCH + i, mask=_bit(finished, i), other=0),)
        _finish(
            sums, rows, finished, word, target, row_slots, numbers, RULE, NUMBERS, DIM, W, STRETCH, TOGETHER
        )  # fmt: skip
    total = tl.where(_bit(heads, STRETCH - 1)[:, None], values[STRETCH - 1][1], total)
    _, goes_on, row_begin, _ = _row_across(starts, first_row, (stretch + 1) * STRETCH, num_blocks, valid, BLOCK)
    place = tl.where(row_begin >= begin, stretch, num_stretches + stretch)
    tl.store(long_parts + place[:, None] * DIM + word, total, mask=goes_on[:, None] & (word < DIM))


@triton.jit(do_not_specialize=["num_blocks", "num_stretches"])
def _long_rows(
    starts,
    num,
    first_row,
    num_blocks,
    num_stretches,
    long_parts,
    target,
    row_slots,
    numbers,
    RULE: tl.constexpr,
    NUMBERS: tl.constexpr,
    DIM: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    STRETCH: tl.constexpr,
    AT_ONCE: tl.constexpr,
    UNITS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Stretch s > 0 is responsible for a row that begins in stretch s - 1 and goes on in s."""
    stretch = 1 + tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)[None, :]
    valid = tl.load(starts + tl.load(num))
    row, across, begin, end = _row_across(starts, first_row, stretch * STRETCH, num_blocks, valid, BLOCK)
    mine = across & (begin >= (stretch - 1) * STRETCH * BLOCK)
    if tl.max(mine.to(tl.int32), 0) > 0:
        total = tl.load(long_parts + (stretch - 1)[:, None] * DIM + word, mask=mine[:, None] & (word < DIM), other=0.0)
        stop = tl.where(mine, tl.cdiv(end, STRETCH * BLOCK).to(tl.int64), 0)
        at = stretch
        while tl.max(stop - at, 0) > 0:
            values: tl.tuple = ()
            for i in tl.static_range(AT_ONCE):
                place = long_parts + (num_stretches + at + i)[:, None] * DIM + word
                values += (tl.load(place, mask=(at + i < stop)[:, None] & (word < DIM), other=0.0),)
            for i in tl.static_range(AT_ONCE):
                total = tl.where((at + i < stop)[:, None], total + values[i], total)
            at += AT_ONCE
        _finish(
            (total,), (row,), mine.to(tl.int64), word, target, row_slots, numbers, RULE, NUMBERS, DIM, W, 1, 1
        )  # fmt: skip


def first_rows(starts: Tensor, num: Tensor) -> Tensor:
    """The distinct row at the beginning of each block of a sorted batch, for batches whose plan does not tell."""
    num_blocks = triton.cdiv(starts.numel() - 1, _BLOCK)
    first_row = starts.new_empty(num_blocks)
    _first_rows[(triton.cdiv(num_blocks, 128),)](starts, num, num_blocks, first_row, BLOCK=_BLOCK, LANES=128)
    return first_row


def sum_rows(
    rule: str,
    target: Tensor,
    row_slots: Tensor | None,
    numbers: Tensor | None,
    num: Tensor,
    grad: Tensor,
    order: Tensor,
    starts: Tensor,
    bag_of: Tensor | None,
    scale: Tensor | None,
    winner: Tensor | None,
    first_row: Tensor | None,
) -> None:
    """Sum over the lookups of each row; then `target` is the cache, or for the rule "sum" where row u's goes to [u]."""
    num_lookups, dim = order.numel(), grad.shape[1]
    if num_lookups == 0:
        return
    assert grad.is_contiguous()
    assert target.is_contiguous()
    if first_row is None:
        first_row = first_rows(starts, num)
    num_blocks = triton.cdiv(num_lookups, _BLOCK)
    num_stretches = triton.cdiv(num_blocks, _STRETCH)
    assert first_row.numel() >= num_blocks
    words = triton.next_power_of_2(dim)
    if rule != "row_wise_adagrad":  # which needs a whole row
        words = min(words, _WORDS)
    units = max(_TILE // words, 1)
    pieces = triton.cdiv(dim, words)
    coalesced = _TOGETHER[rule]
    options: dict[str, Any] = {
        "RULE": rule,
        "NUMBERS": NUM_NUMBERS.get(rule, 0),
        "DIM": dim,
        "W": target.shape[1],
        "BLOCK": _BLOCK,
        "UNITS": units,
        "WORDS": words,
        "num_warps": max(words // 128, 1),
        "enable_fp_fusion": False,
    }
    finish = (target, row_slots, numbers)
    parts = grad.new_empty(2, num_blocks, dim, dtype=torch.float32)
    chunk = min(_CHUNK, _BLOCK)
    _blocks[(triton.cdiv(num_blocks, units), pieces)](
        grad, order, num_lookups, bag_of, scale, winner, starts, num, first_row, num_blocks, parts, *finish,
        CHUNK=chunk, TOGETHER=min(coalesced, chunk), **options,
    )  # fmt: skip
    if num_blocks == 1:
        return
    long_parts = grad.new_empty(2, num_stretches, dim, dtype=torch.float32)
    _stretches[(triton.cdiv(num_stretches, units), pieces)](
        starts, num, first_row, num_blocks, num_stretches, parts, long_parts, *finish,
        STRETCH=_STRETCH, TOGETHER=min(coalesced, _STRETCH), **options,
    )  # fmt: skip
    if num_stretches == 1:
        return
    _long_rows[(triton.cdiv(num_stretches - 1, units), pieces)](
        starts, num, first_row, num_blocks, num_stretches, long_parts, *finish,
        STRETCH=_STRETCH, AT_ONCE=_AT_ONCE, **options,
    )  # fmt: skip


def backward_update(
    rule: str,
    cache: Tensor,
    row_slots: Tensor,
    num: Tensor,
    grad: Tensor,
    order: Tensor,
    starts: Tensor,
    bag_of: Tensor | None,
    scale: Tensor | None,
    winner: Tensor | None,
    dim: int,
    hyper: Tensor | tuple[float, ...],
    first_row: Tensor | None,
) -> None:
    check_rule(rule)
    assert grad.shape[1] == dim
    batch = (num, grad, order, starts, bag_of, scale, winner, first_row)
    if rule in NUM_NUMBERS and (rule != "row_wise_adagrad" or dim <= MOST_WORDS):
        sum_rows(rule, cache, row_slots, numbers_on(cache.device, rule, hyper), *batch)
    else:
        sums = grad.new_empty(order.numel(), dim, dtype=torch.float32)
        sum_rows("sum", sums, None, None, *batch)
        row_optimizer(rule, cache, row_slots, sums, num, dim, hyper)
