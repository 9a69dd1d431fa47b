"""Victim selection in Triton: a radix select finds the highest priority that still goes, a compaction keeps the order.

The number wanted is known on the device alone. Four passes count the evictable slots by one byte of their priority
each, highest byte first and only those that agree with the bytes settled so far; every program settles these bytes
for itself from the counts of the passes before, which is cheaper than a launch in between. A fifth pass counts how many
slots of each block go. Priorities of the policy that looks ahead fit one byte once it is known which batch is planned:
they take one pass, which leaves its counts by block for the compaction.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.rows import NO_SLOT
from hotrows.ops.select_victims import FURTHEST, MOST_SEEN, NEEDED

_NEEDED, _FURTHEST, _MOST_SEEN = tl.constexpr(NEEDED), tl.constexpr(FURTHEST), tl.constexpr(MOST_SEEN)
# slots at a time and warps: small ones are done sooner, but each adds up the counts of all before it
_SMALL_BLOCK, _LARGE_BLOCK = (1024, 4), (4096, 8)
_FEW = 1 << 17  # slots to choose
_MOST_PROGRAMS = 1024  # enough to fill the device, few enough that settling bytes in each does not weigh
_AT_ONCE = 1024  # blocks whose counts are added up at a time
_BYTES_AT_ONCE = 16  # the same, where each has 256 counts
NUM_COUNTS = 4 * 256


@triton.jit
def _key(priority, number, slot, inside):
    """Priority as an unsigned number of the same order; with a batch's number, of which only the first byte counts."""
    found = tl.load(priority + slot, mask=inside, other=0)
    if number is None:
        key = found.to(tl.uint32, bitcast=True) ^ 0x80000000
    else:
        distance = tl.minimum(tl.maximum(-found + _NEEDED - tl.load(number), 0), _FURTHEST)
        needed = found > _MOST_SEEN
        seldom = tl.maximum(found + 1, 0)  # 0: a slot that was never used
        key = tl.where(needed, 255 - distance, seldom).to(tl.uint32, bitcast=True) << 24
    return key


@triton.jit
def _scanned(scan, num_slots):
    """The first slot that is looked at, and how many are."""
    if scan is None:
        start = tl.zeros([], tl.int32)
        length = tl.zeros([], tl.int32) + num_slots
    else:
        start = tl.load(scan)
        length = tl.load(scan + 1)
    return start, length


@triton.jit
def _slot_at(position, start, num_slots):
    """Slots from `start` on, those from 0 on behind the last one."""
    slot = position + start
    return tl.where(slot >= num_slots, slot - num_slots, slot)


@triton.jit
def _evictable(last_used, pinned, oldest, slot, candidate):
    """Asked of candidates only: after the first pass they are few, and the other slots' bytes are not even read."""
    used = tl.load(last_used + slot, mask=candidate, other=0)
    return candidate & (used < tl.load(oldest)) & (tl.load(pinned + slot, mask=candidate, other=1) == 0)


@triton.jit
def _settle(counts, num_wanted, NUM_BYTES: tl.constexpr):
    """The first bytes of the highest key that goes, and how many of the slots that share them go."""
    left = tl.load(num_wanted)
    prefix = tl.full([], 0, tl.uint32)
    for step in tl.static_range(NUM_BYTES):
        byte = tl.arange(0, 256)
        count = tl.load(counts + step * 256 + byte)
        up_to = tl.cumsum(count, 0)
        left = tl.minimum(left, tl.sum(count, 0))  # matters in the first pass, where fewer may be evictable than wanted
        chosen = tl.sum((up_to < left).to(tl.int32), 0)
        left -= tl.sum(tl.where(byte < chosen, count, 0), 0)
        prefix = (prefix << 8) | chosen.to(tl.uint32)
    return prefix, left


@triton.jit(do_not_specialize=["num_slots"])
def _count_bytes(
    priority, number, last_used, pinned, oldest, num_wanted, counts, num_slots, scan, by_block,
    STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    prefix, _ = _settle(counts, num_wanted, STEP)
    total = tl.zeros([256], tl.int32)
    start, length = _scanned(scan, num_slots)
    block = tl.program_id(0).to(tl.int64)
    while block * BLOCK < length:
        position = block * BLOCK + tl.arange(0, BLOCK)
        inside = position < length
        slot = _slot_at(position, start, num_slots)
        key = _key(priority, number, slot, inside)
        candidate = inside
        if STEP > 0:
            candidate = inside & ((key >> (32 - 8 * STEP)) == prefix)
        candidate = _evictable(last_used, pinned, oldest, slot, candidate)
        byte = ((key >> (24 - 8 * STEP)) & 255).to(tl.int32)
        here = tl.histogram(byte, 256, mask=candidate)
        if by_block is not None:
            tl.store(by_block + block * 256 + tl.arange(0, 256), here)
        total += here
        block += tl.num_programs(0)
    tl.atomic_add(counts + STEP * 256 + tl.arange(0, 256), total, mask=total > 0, sem="relaxed")


@triton.jit(do_not_specialize=["num_slots", "num_blocks"])
def _count_chosen(
    priority, number, last_used, pinned, oldest, num_wanted, counts, num_slots, scan, chosen_in, num_blocks,
    NUM_BYTES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    limit = _settle(counts, num_wanted, NUM_BYTES)[0] << (32 - 8 * NUM_BYTES)
    start, length = _scanned(scan, num_slots)
    block = tl.program_id(0).to(tl.int64)
    while block * BLOCK < length:
        position = block * BLOCK + tl.arange(0, BLOCK)
        inside = position < length
        slot = _slot_at(position, start, num_slots)
        key = _key(priority, number, slot, inside)
        goes = _evictable(last_used, pinned, oldest, slot, inside & (key <= limit))
        tl.store(chosen_in + block, tl.sum((goes & (key < limit)).to(tl.int32), 0))
        tl.store(chosen_in + num_blocks + block, tl.sum((goes & (key == limit)).to(tl.int32), 0))
        block += tl.num_programs(0)


@triton.jit
def _gone_before(chosen_in, num_blocks, start, block, limit, NUM_BYTES: tl.constexpr, AT_ONCE: tl.constexpr):
    """How many slots below the limit, and how many at it, the next AT_ONCE blocks from `start` to `block` have."""
    other = start + tl.arange(0, AT_ONCE)
    if NUM_BYTES == 1:  # by block and byte
        byte = tl.arange(0, 256)[None, :]
        count = tl.load(chosen_in + other[:, None] * 256 + byte, mask=(other < block)[:, None], other=0)
        below = tl.sum(tl.sum(tl.where(byte < limit, count, 0), 1), 0)
        ties = tl.sum(tl.sum(tl.where(byte == limit, count, 0), 1), 0)
    else:
        below = tl.sum(tl.load(chosen_in + other, mask=other < block, other=0), 0)
        ties = tl.sum(tl.load(chosen_in + num_blocks + other, mask=other < block, other=0), 0)
    return below, ties


@triton.jit(do_not_specialize=["num_slots", "num_blocks", "most"])
def _compact(
    priority, number, last_used, pinned, oldest, num_wanted, counts, num_slots, scan, chosen_in, num_blocks, answer,
    most, NUM_BYTES: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    prefix, num_ties = _settle(counts, num_wanted, NUM_BYTES)
    limit = prefix << (32 - 8 * NUM_BYTES)
    start, length = _scanned(scan, num_slots)
    block = tl.program_id(0).to(tl.int64)
    summed = tl.zeros([], tl.int64)  # blocks whose counts are in the two sums
    below_before = tl.zeros([], tl.int32)
    ties_before = tl.zeros([], tl.int32)
    while block * BLOCK < length:
        while summed < block:
            below, ties = _gone_before(chosen_in, num_blocks, summed, block, prefix.to(tl.int32), NUM_BYTES, AT_ONCE)
            below_before += below
            ties_before += ties
            summed += AT_ONCE
        summed = block
        position = block * BLOCK + tl.arange(0, BLOCK)
        inside = position < length
        slot = _slot_at(position, start, num_slots)
        key = _key(priority, number, slot, inside)
        goes = _evictable(last_used, pinned, oldest, slot, inside & (key <= limit))
        below = (goes & (key < limit)).to(tl.int32)
        tie = (goes & (key == limit)).to(tl.int32)
        below_to = below_before + tl.cumsum(below, 0)
        tie_to = ties_before + tl.cumsum(tie, 0)
        chosen = (below > 0) | ((tie > 0) & (tie_to <= num_ties))
        place = (below_to + tl.minimum(tie_to, num_ties) - 1).to(tl.int64)
        tl.store(answer + place, slot.to(tl.int32), mask=chosen & (place < most))
        block += tl.num_programs(0)


def select_victims(priority: Tensor, last_used: Tensor, pinned: Tensor, oldest: int, num_wanted: Tensor, most: int) -> Tensor:
    device = priority.device
    answer = torch.full((most,), NO_SLOT, dtype=torch.int32, device=device)
    counts = torch.zeros(NUM_COUNTS, dtype=torch.int32, device=device)
    first_in_flight = torch.full((1,), oldest, dtype=torch.int32, device=device)
    select_victims_into(priority, None, last_used, pinned, first_in_flight, num_wanted, counts, answer)
    return answer


def select_victims_into(
    priority: Tensor,
    number: Tensor | None,
    last_used: Tensor,
    pinned: Tensor,
    oldest: Tensor,
    num_wanted: Tensor,
    counts: Tensor,
    answer: Tensor,
    scan: Tensor | None = None,
) -> None:
    """`select` with everything on the device; the answer beyond the last slot chosen stays as it was.

    Args:
        number: int32 [1], of the batch that is planned, where priorities are those of `Lookahead` without counts.
        oldest: int32 [1]. counts: int32 [NUM_COUNTS], zero; the first 256 add up to the number of evictable slots.
        scan: int32 [2], the first slot to look at and how many, from slot 0 on behind the last one; None for all. Of
            equal priorities the one looked at first goes first, and in this order is the answer.
    """
    num_slots, most = priority.numel(), answer.numel()
    if num_slots == 0 or most == 0:
        return
    block, num_warps = _SMALL_BLOCK if most <= _FEW else _LARGE_BLOCK
    num_blocks = triton.cdiv(num_slots, block)
    # where a part of the slots is looked at, it has a few times as many as there are rows to place at most
    most_programs = _MOST_PROGRAMS if scan is None else min(_MOST_PROGRAMS, max(16, triton.cdiv(2 * most, block)))
    grid = (min(num_blocks, most_programs),)
    slots = (priority, number, last_used, pinned.view(torch.uint8), oldest, num_wanted, counts, num_slots, scan)
    num_bytes = 4 if number is None else 1
    if num_bytes == 1:
        chosen_in = torch.empty((num_blocks, 256), dtype=torch.int32, device=priority.device)
        _count_bytes[grid](*slots, chosen_in, STEP=0, BLOCK=block, num_warps=num_warps)
    else:
        for step in range(num_bytes):
            _count_bytes[grid](*slots, None, STEP=step, BLOCK=block, num_warps=num_warps)
        # [2, blocks]: how many of a block's slots are below the limit, how many at it
        chosen_in = torch.empty((2, num_blocks), dtype=torch.int32, device=priority.device)
        _count_chosen[grid](
            *slots, chosen_in, num_blocks, NUM_BYTES=num_bytes, BLOCK=block, num_warps=num_warps
        )  # fmt: skip
    _compact[grid](
        *slots, chosen_in, num_blocks, answer, most, NUM_BYTES=num_bytes, BLOCK=block,
        AT_ONCE=_BYTES_AT_ONCE if num_bytes == 1 else _AT_ONCE, num_warps=num_warps,
    )  # fmt: skip
