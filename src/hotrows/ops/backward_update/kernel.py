"""Segmented sums over the lookups of each row in Triton; a finished sum goes into an optimizer step, or is stored.

The sums are built in three levels without atomics, so that their bits are reproducible. The sorted lookups are divided
into blocks and the blocks into superblocks, both of fixed length. A program sums each row's lookups in its block one
after the other. A row whose lookups all lie in one block is finished there. A longer row leaves partial sums: its
`head` in the block where it begins, and a part `carried` into every later block. The second level sums these partial
sums in the same way for each superblock, and finishes the rows that lie in one superblock. The third level finishes
the few rows that are longer.

`ops.segment_sum` runs the same kernels with RULE "sum", which stores the sums, so its bits are the same by
construction. `ops.row_optimizer.kernel` says why the bits of the optimizer steps are the same too.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.row_optimizer.kernel import (
    MAX_WORDS,
    NUM_COEFFICIENTS,
    check_rule,
    coefficients_on,
    load_coefficients,
    load_record,
    row_optimizer,
    step,
    store_record,
    sum_of_squares,
)
from hotrows.ops.rows import LOOKUPS_PER_BLOCK

_BLOCK = LOOKUPS_PER_BLOCK  # lookups
_CHUNK = 16  # lookups of a block whose gradients are loaded together; at most 32
_SUPERBLOCK = 16  # blocks; at most 32
_PARTS_IN_FLIGHT = 16  # partial sums of a long row that are loaded together
# records that are loaded before the first of them is stored
_RECORDS_IN_FLIGHT = {"sum": 16, "sgd": 8, "adagrad": 8, "row_wise_adagrad": 4, "adam": 4}
_MAX_WORDS_PER_PROGRAM = 128  # of a row; with one warp each thread then holds four
_TILE = 128  # words in one program; a program takes several blocks where rows are narrow


@triton.jit(do_not_specialize=["num_blocks"])
def _first_rows(starts, num, num_blocks, first_row, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Find the row that each block's first lookup belongs to, by bisection of `starts`."""
    block = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    low = tl.zeros([WIDTH], tl.int32)
    high = tl.zeros([WIDTH], tl.int32) + tl.maximum(tl.load(num) - 1, 0)
    while tl.max(high - low, 0) > 0:
        middle = (low + high + 1) // 2
        reached = tl.load(starts + middle) <= block * BLOCK
        low = tl.where(reached, middle, low)
        high = tl.where(reached, high, middle - 1)
    tl.store(first_row + block, low, mask=block < num_blocks)


@triton.jit
def _bits(flags, COUNT: tl.constexpr):
    """Pack bool [units, COUNT] into one bit mask per unit, int64 [units]."""
    return tl.sum(flags.to(tl.int64) << tl.arange(0, COUNT).to(tl.int64)[None, :], 1)


@triton.jit
def _bit(bits, INDEX: tl.constexpr):
    return ((bits >> INDEX) & 1) != 0


@triton.jit
def _finish(
    sums,
    rows,
    finished,
    word,
    target,
    row_slots,
    coefficients,
    RULE: tl.constexpr,
    NUM_COEF: tl.constexpr,
    DIM: tl.constexpr,
    W: tl.constexpr,
    COUNT: tl.constexpr,
    IN_FLIGHT: tl.constexpr,
):
    """Update or store sums[i] [units, words] of rows[i] [units], for each i < COUNT whose bit in `finished` is set."""
    if RULE == "sum":
        for i in tl.static_range(COUNT):
            at = target + rows[i].to(tl.int64)[:, None] * DIM + word
            tl.store(at, sums[i], mask=_bit(finished, i)[:, None] & (word < DIM))
    else:
        loaded = load_coefficients(coefficients, NUM_COEF)
        slots: tl.tuple = ()
        for i in tl.static_range(COUNT):
            slots += (tl.load(row_slots + rows[i], mask=_bit(finished, i), other=-1).to(tl.int64),)
        for begin in tl.static_range(0, COUNT, IN_FLIGHT):
            if tl.max((finished >> begin) & ((1 << IN_FLIGHT) - 1), 0) != 0:
                # The compiler moves no load over a store, so all records are loaded before the first is stored.
                olds: tl.tuple = ()
                totals: tl.tuple = ()
                for i in tl.static_range(IN_FLIGHT):
                    slot = slots[begin + i]
                    mask = (slot >= 0)[:, None] & (word < DIM)
                    olds += (load_record(target + slot * W, word, mask, RULE, DIM),)
                    if RULE == "row_wise_adagrad":
                        totals += (tl.load(target + slot * W + DIM, mask=slot >= 0, other=0.0),)
                    else:
                        totals += (0.0,)
                if RULE == "row_wise_adagrad":
                    # Every warp loads its own copy of the totals: none may load what another has stored.
                    tl.debug_barrier()
                for i in tl.static_range(IN_FLIGHT):
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
    """The gradients that the lookups at some positions pass to their rows, [units, words]."""
    # The mask does not wait for `inside`, which depends on an earlier load.
    lookup = tl.load(order + position, mask=position < num_lookups, other=0)
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


@triton.jit(do_not_specialize=["num_lookups", "num_blocks"])  # a batch of another length must not recompile
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
    coefficients,
    RULE: tl.constexpr,
    NUM_COEF: tl.constexpr,
    DIM: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    IN_FLIGHT: tl.constexpr,
    UNITS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """First level. parts [2, blocks, DIM]: the heads, then the carried parts."""
    block = tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)[None, :]
    num_rows = tl.load(num)
    begin = block * BLOCK
    left = tl.load(starts + num_rows) - begin  # lookups that have a row, from this block on
    row = tl.load(first_row + block, mask=block < num_blocks, other=0)
    began_here = tl.load(starts + row) >= begin

    # Every row has a lookup, so at most BLOCK rows end here.
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
            first_ends = tl.where(began_here | ended_before, 0, here & -here)  # the end of a row that began earlier
            at = row + tl.sum((ends_here & (last < first)).to(tl.int32), 1)
            rows: tl.tuple = ()
            for i in tl.static_range(CHUNK):
                address = parts + (num_blocks + block)[:, None] * DIM + word
                tl.store(address, sums[i], mask=_bit(first_ends, i)[:, None] & (word < DIM))
                rows += (at,)
                at += _bit(here, i).to(tl.int32)
            _finish(
                sums, rows, here & ~first_ends, word, target, row_slots, coefficients,
                RULE, NUM_COEF, DIM, W, CHUNK, IN_FLIGHT,
            )  # fmt: skip
    continues = (left >= BLOCK) & ~_bit(ends, BLOCK - 1)
    part = tl.where(began_here | (ends != 0), block, num_blocks + block)
    tl.store(parts + part[:, None] * DIM + word, total, mask=continues[:, None] & (word < DIM))


@triton.jit
def _row_across(starts, first_row, block, num_blocks, valid, BLOCK: tl.constexpr):
    """The row at the beginning of a block; whether it began in an earlier one; its first lookup and its end."""
    inside = (block < num_blocks) & (block * BLOCK < valid)
    row = tl.load(first_row + block, mask=inside, other=0)
    begin = tl.load(starts + row)
    return row, inside & (begin < block * BLOCK), begin, tl.load(starts + row + 1)


@triton.jit(do_not_specialize=["num_blocks", "num_superblocks"])
def _superblocks(
    starts,
    num,
    first_row,
    num_blocks,
    num_superblocks,
    parts,
    long_parts,
    target,
    row_slots,
    coefficients,
    RULE: tl.constexpr,
    NUM_COEF: tl.constexpr,
    DIM: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    SUPERBLOCK: tl.constexpr,
    IN_FLIGHT: tl.constexpr,
    UNITS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Second level. long_parts [2, superblocks, DIM]: the heads, then the carried parts."""
    superblock = tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)[None, :]
    valid = tl.load(starts + tl.load(num))
    begin = superblock * SUPERBLOCK * BLOCK
    block = superblock[:, None] * SUPERBLOCK + tl.arange(0, SUPERBLOCK)[None, :]
    _, across, row_begin, row_end = _row_across(starts, first_row, block, num_blocks, valid, BLOCK)
    _, leaves, next_begin, _ = _row_across(starts, first_row, block + 1, num_blocks, valid, BLOCK)
    ends = across & (row_end <= (block + 1) * BLOCK)
    began_here = row_begin >= begin[:, None]
    carried = _bits(across, SUPERBLOCK)
    heads = _bits(leaves & (next_begin >= block * BLOCK), SUPERBLOCK)
    finished = _bits(ends & began_here, SUPERBLOCK)
    first_ends = _bits(ends & ~began_here, SUPERBLOCK)

    values: tl.tuple = ()
    for i in tl.static_range(SUPERBLOCK):
        at = (superblock * SUPERBLOCK + i)[:, None]
        head = tl.load(parts + at * DIM + word, mask=_bit(heads, i)[:, None] & (word < DIM), other=0.0)
        at += num_blocks
        value = tl.load(parts + at * DIM + word, mask=_bit(carried, i)[:, None] & (word < DIM), other=0.0)
        values += ((value, head),)
    sums: tl.tuple = ()
    for i in tl.static_range(SUPERBLOCK):
        if i == 0:
            total = values[0][0]
        else:
            total = tl.where(_bit(heads, i - 1)[:, None], values[i - 1][1], total) + values[i][0]
        sums += (total,)
    if tl.max(finished | first_ends, 0) != 0:
        rows: tl.tuple = ()
        for i in tl.static_range(SUPERBLOCK):
            address = long_parts + (num_superblocks + superblock)[:, None] * DIM + word
            tl.store(address, sums[i], mask=_bit(first_ends, i)[:, None] & (word < DIM))
            rows += (tl.load(first_row + superblock * SUPERBLOCK + i, mask=_bit(finished, i), other=0),)
        _finish(
            sums, rows, finished, word, target, row_slots, coefficients,
            RULE, NUM_COEF, DIM, W, SUPERBLOCK, IN_FLIGHT,
        )  # fmt: skip
    total = tl.where(_bit(heads, SUPERBLOCK - 1)[:, None], values[SUPERBLOCK - 1][1], total)
    _, continues, row_begin, _ = _row_across(starts, first_row, (superblock + 1) * SUPERBLOCK, num_blocks, valid, BLOCK)
    part = tl.where(row_begin >= begin, superblock, num_superblocks + superblock)
    tl.store(long_parts + part[:, None] * DIM + word, total, mask=continues[:, None] & (word < DIM))


@triton.jit(do_not_specialize=["num_blocks", "num_superblocks"])
def _long_rows(
    starts,
    num,
    first_row,
    num_blocks,
    num_superblocks,
    long_parts,
    target,
    row_slots,
    coefficients,
    RULE: tl.constexpr,
    NUM_COEF: tl.constexpr,
    DIM: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    SUPERBLOCK: tl.constexpr,
    IN_FLIGHT: tl.constexpr,
    UNITS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Third level. Superblock s > 0 finishes the row that begins in superblock s - 1 and continues in s."""
    superblock = 1 + tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)[None, :]
    valid = tl.load(starts + tl.load(num))
    row, across, begin, end = _row_across(starts, first_row, superblock * SUPERBLOCK, num_blocks, valid, BLOCK)
    owned = across & (begin >= (superblock - 1) * SUPERBLOCK * BLOCK)
    if tl.max(owned.to(tl.int32), 0) > 0:
        head = long_parts + (superblock - 1)[:, None] * DIM + word
        total = tl.load(head, mask=owned[:, None] & (word < DIM), other=0.0)
        stop = tl.where(owned, tl.cdiv(end, SUPERBLOCK * BLOCK).to(tl.int64), 0)
        at = superblock
        while tl.max(stop - at, 0) > 0:
            values: tl.tuple = ()
            for i in tl.static_range(IN_FLIGHT):
                address = long_parts + (num_superblocks + at + i)[:, None] * DIM + word
                values += (tl.load(address, mask=(at + i < stop)[:, None] & (word < DIM), other=0.0),)
            for i in tl.static_range(IN_FLIGHT):
                total = tl.where((at + i < stop)[:, None], total + values[i], total)
            at += IN_FLIGHT
        _finish(
            (total,), (row,), owned.to(tl.int64), word, target, row_slots, coefficients, RULE, NUM_COEF, DIM, W, 1, 1
        )  # fmt: skip


def first_rows(starts: Tensor, num: Tensor) -> Tensor:
    """The unique row at the beginning of each block of a sorted batch, for batches whose plan does not have them."""
    num_blocks = triton.cdiv(starts.numel() - 1, _BLOCK)
    first_row = starts.new_empty(num_blocks)
    _first_rows[(triton.cdiv(num_blocks, 128),)](starts, num, num_blocks, first_row, BLOCK=_BLOCK, WIDTH=128)
    return first_row


def sum_rows(
    rule: str,
    target: Tensor,
    row_slots: Tensor | None,
    coefficients: Tensor | None,
    num: Tensor,
    grad: Tensor,
    order: Tensor,
    starts: Tensor,
    bag_of: Tensor | None,
    scale: Tensor | None,
    winner: Tensor | None,
    first_row: Tensor | None,
) -> None:
    """Sum over the lookups of each row, and update its record in the cache `target`; rule "sum" stores to target[u]."""
    num_lookups, dim = order.numel(), grad.shape[1]
    if num_lookups == 0:
        return
    assert grad.is_contiguous()
    assert target.is_contiguous()
    if first_row is None:
        first_row = first_rows(starts, num)
    num_blocks = triton.cdiv(num_lookups, _BLOCK)
    num_superblocks = triton.cdiv(num_blocks, _SUPERBLOCK)
    assert first_row.numel() >= num_blocks
    words = triton.next_power_of_2(dim)
    if rule != "row_wise_adagrad":  # its state is a sum over the whole row
        words = min(words, _MAX_WORDS_PER_PROGRAM)
    units = max(_TILE // words, 1)
    pieces = triton.cdiv(dim, words)
    in_flight = _RECORDS_IN_FLIGHT[rule]
    options: dict[str, Any] = {
        "RULE": rule,
        "NUM_COEF": NUM_COEFFICIENTS.get(rule, 0),
        "DIM": dim,
        "W": target.shape[1],
        "BLOCK": _BLOCK,
        "UNITS": units,
        "WORDS": words,
        "num_warps": max(words // 128, 1),
        "enable_fp_fusion": False,
    }
    finish = (target, row_slots, coefficients)
    parts = grad.new_empty(2, num_blocks, dim, dtype=torch.float32)
    chunk = min(_CHUNK, _BLOCK)
    _blocks[(triton.cdiv(num_blocks, units), pieces)](
        grad, order, num_lookups, bag_of, scale, winner, starts, num, first_row, num_blocks, parts, *finish,
        CHUNK=chunk, IN_FLIGHT=min(in_flight, chunk), **options,
    )  # fmt: skip
    if num_blocks == 1:
        return
    long_parts = grad.new_empty(2, num_superblocks, dim, dtype=torch.float32)
    _superblocks[(triton.cdiv(num_superblocks, units), pieces)](
        starts, num, first_row, num_blocks, num_superblocks, parts, long_parts, *finish,
        SUPERBLOCK=_SUPERBLOCK, IN_FLIGHT=min(in_flight, _SUPERBLOCK), **options,
    )  # fmt: skip
    if num_superblocks == 1:
        return
    _long_rows[(triton.cdiv(num_superblocks - 1, units), pieces)](
        starts, num, first_row, num_blocks, num_superblocks, long_parts, *finish,
        SUPERBLOCK=_SUPERBLOCK, IN_FLIGHT=_PARTS_IN_FLIGHT, **options,
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
    if rule in NUM_COEFFICIENTS and (rule != "row_wise_adagrad" or dim <= MAX_WORDS):
        sum_rows(rule, cache, row_slots, coefficients_on(cache.device, rule, hyper), *batch)
    else:
        sums = grad.new_empty(order.numel(), dim, dtype=torch.float32)
        sum_rows("sum", sums, None, None, *batch)
        row_optimizer(rule, cache, row_slots, sums, num, dim, hyper)
