"""Victim selection in Triton: a radix select finds the highest priority to evict, a compaction keeps the order.

Only the device knows how many victims are wanted. Four passes count the evictable slots by one byte of their priority
each, the highest byte first, and only slots that agree with the bytes found so far. Every program finds these bytes for
itself from the counts of the passes before, which is cheaper than a kernel in between. A fifth pass counts the victims
of each block. The priorities of the lookahead policy fit into one byte once the planned batch is known. They take one
pass, which also leaves its counts by block for the compaction.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.rows import NO_SLOT
from hotrows.ops.select_victims import MAX_DISTANCE, MAX_SEEN, NEEDED

_NEEDED, _MAX_DISTANCE, _MAX_SEEN = tl.constexpr(NEEDED), tl.constexpr(MAX_DISTANCE), tl.constexpr(MAX_SEEN)
# The slots and the warps of a block. Small blocks take less time, but each sums the counts of all blocks before it.
_SMALL_BLOCK, _LARGE_BLOCK = (1024, 4), (4096, 8)
_FEW_VICTIMS = 1 << 17  # up to which blocks are small
_MAX_PROGRAMS = 1024  # enough to fill the device, and so few that finding the bytes in each takes little time
_CHUNK = 1024  # blocks whose counts are summed at a time
_CHUNK_OF_BYTES = 16  # the same if every block has 256 counts
NUM_COUNTS = 4 * 256


@triton.jit
def _key(priority, batch_number, slot, inside):
    """The priority of a slot as an unsigned number of the same order.

    Given the number of the planned batch, this number is the highest byte, and the other bytes are zero.
    """
    found = tl.load(priority + slot, mask=inside, other=0)
    if batch_number is None:
        key = found.to(tl.uint32, bitcast=True) ^ 0x80000000
    else:
        distance = tl.minimum(tl.maximum(-found + _NEEDED - tl.load(batch_number), 0), _MAX_DISTANCE)
        needed = found > _MAX_SEEN
        frequency = tl.maximum(found + 1, 0)  # 0 for a slot that was never used
        key = tl.where(needed, 255 - distance, frequency).to(tl.uint32, bitcast=True) << 24
    return key


@triton.jit
def _scanned(scan, num_slots):
    """The first slot of the scan, and how many slots are scanned."""
    if scan is None:
        start = tl.zeros([], tl.int32)
        length = tl.zeros([], tl.int32) + num_slots
    else:
        start = tl.load(scan)
        length = tl.load(scan + 1)
    return start, length


@triton.jit
def _slot_at(position, start, num_slots):
    """The slot at each position of the scan. Behind the last slot the scan goes on at slot 0."""
    slot = position + start
    return tl.where(slot >= num_slots, slot - num_slots, slot)


@triton.jit
def _evictable(last_used, pinned, oldest, slot, candidate):
    """Which candidates may be evicted.

    Only candidates are loaded. After the first pass they are few, and most of the memory is not read.
    """
    used = tl.load(last_used + slot, mask=candidate, other=0)
    return candidate & (used < tl.load(oldest)) & (tl.load(pinned + slot, mask=candidate, other=1) == 0)


@triton.jit
def _find_limit(counts, num_wanted, NUM_BYTES: tl.constexpr):
    """The first bytes of the highest key of a victim, and how many of the slots with these bytes are victims."""
    left = tl.load(num_wanted)
    prefix = tl.full([], 0, tl.uint32)
    for step in tl.static_range(NUM_BYTES):
        byte = tl.arange(0, 256)
        count = tl.load(counts + step * 256 + byte)
        up_to = tl.cumsum(count, 0)
        left = tl.minimum(left, tl.sum(count, 0))  # in the first pass, fewer slots may be evictable than are wanted
        chosen = tl.sum((up_to < left).to(tl.int32), 0)
        left -= tl.sum(tl.where(byte < chosen, count, 0), 0)
        prefix = (prefix << 8) | chosen.to(tl.uint32)
    return prefix, left


@triton.jit(do_not_specialize=["num_slots"])
def _count_bytes(
    priority, batch_number, last_used, pinned, oldest, num_wanted, counts, num_slots, scan, block_counts,
    STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the evictable slots by byte STEP of their key."""
    prefix, _ = _find_limit(counts, num_wanted, STEP)
    total = tl.zeros([256], tl.int32)
    start, length = _scanned(scan, num_slots)
    block = tl.program_id(0).to(tl.int64)
    while block * BLOCK < length:
        position = block * BLOCK + tl.arange(0, BLOCK)
        inside = position < length
        slot = _slot_at(position, start, num_slots)
        key = _key(priority, batch_number, slot, inside)
        candidate = inside
        if STEP > 0:
            candidate = inside & ((key >> (32 - 8 * STEP)) == prefix)
        candidate = _evictable(last_used, pinned, oldest, slot, candidate)
        byte = ((key >> (24 - 8 * STEP)) & 255).to(tl.int32)
        here = tl.histogram(byte, 256, mask=candidate)
        if block_counts is not None:
            tl.store(block_counts + block * 256 + tl.arange(0, 256), here)
        total += here
        block += tl.num_programs(0)
    tl.atomic_add(counts + STEP * 256 + tl.arange(0, 256), total, mask=total > 0, sem="relaxed")


@triton.jit(do_not_specialize=["num_slots", "num_blocks"])
def _count_chosen(
    priority, batch_number, last_used, pinned, oldest, num_wanted, counts, num_slots, scan, block_counts, num_blocks,
    NUM_BYTES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the slots of each block below the limit, which are all victims, and those at the limit."""
    limit = _find_limit(counts, num_wanted, NUM_BYTES)[0] << (32 - 8 * NUM_BYTES)
    start, length = _scanned(scan, num_slots)
    block = tl.program_id(0).to(tl.int64)
    while block * BLOCK < length:
        position = block * BLOCK + tl.arange(0, BLOCK)
        inside = position < length
        slot = _slot_at(position, start, num_slots)
        key = _key(priority, batch_number, slot, inside)
        evictable = _evictable(last_used, pinned, oldest, slot, inside & (key <= limit))
        tl.store(block_counts + block, tl.sum((evictable & (key < limit)).to(tl.int32), 0))
        tl.store(block_counts + num_blocks + block, tl.sum((evictable & (key == limit)).to(tl.int32), 0))
        block += tl.num_programs(0)


@triton.jit
def _count_chunk(block_counts, num_blocks, start, block, limit, NUM_BYTES: tl.constexpr, CHUNK: tl.constexpr):
    """How many slots are below the limit, and how many are at it, in CHUNK blocks from `start` on, before `block`."""
    other = start + tl.arange(0, CHUNK)
    if NUM_BYTES == 1:  # the counts are those of `_count_bytes`, by block and byte
        byte = tl.arange(0, 256)[None, :]
        count = tl.load(block_counts + other[:, None] * 256 + byte, mask=(other < block)[:, None], other=0)
        below = tl.sum(tl.sum(tl.where(byte < limit, count, 0), 1), 0)
        ties = tl.sum(tl.sum(tl.where(byte == limit, count, 0), 1), 0)
    else:
        below = tl.sum(tl.load(block_counts + other, mask=other < block, other=0), 0)
        ties = tl.sum(tl.load(block_counts + num_blocks + other, mask=other < block, other=0), 0)
    return below, ties


@triton.jit(do_not_specialize=["num_slots", "num_blocks", "max_victims"])
def _compact(
    priority, batch_number, last_used, pinned, oldest, num_wanted, counts, num_slots, scan, block_counts, num_blocks,
    victims, max_victims, NUM_BYTES: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the victims in the order of the scan."""
    prefix, num_ties = _find_limit(counts, num_wanted, NUM_BYTES)
    limit = prefix << (32 - 8 * NUM_BYTES)
    start, length = _scanned(scan, num_slots)
    block = tl.program_id(0).to(tl.int64)
    summed = tl.zeros([], tl.int64)  # blocks whose counts are in the two sums
    below_before = tl.zeros([], tl.int32)
    ties_before = tl.zeros([], tl.int32)
    while block * BLOCK < length:
        while summed < block:
            below, ties = _count_chunk(block_counts, num_blocks, summed, block, prefix.to(tl.int32), NUM_BYTES, CHUNK)
            below_before += below
            ties_before += ties
            summed += CHUNK
        summed = block
        position = block * BLOCK + tl.arange(0, BLOCK)
        inside = position < length
        slot = _slot_at(position, start, num_slots)
        key = _key(priority, batch_number, slot, inside)
        evictable = _evictable(last_used, pinned, oldest, slot, inside & (key <= limit))
        below = (evictable & (key < limit)).to(tl.int32)
        tie = (evictable & (key == limit)).to(tl.int32)
        below_to = below_before + tl.cumsum(below, 0)
        tie_to = ties_before + tl.cumsum(tie, 0)
        chosen = (below > 0) | ((tie > 0) & (tie_to <= num_ties))
        rank = (below_to + tl.minimum(tie_to, num_ties) - 1).to(tl.int64)
        tl.store(victims + rank, slot.to(tl.int32), mask=chosen & (rank < max_victims))
        block += tl.num_programs(0)


def select_victims(
    priority: Tensor, last_used: Tensor, pinned: Tensor, oldest: int, num_wanted: Tensor, length: int
) -> Tensor:
    device = priority.device
    victims = torch.full((length,), NO_SLOT, dtype=torch.int32, device=device)
    counts = torch.zeros(NUM_COUNTS, dtype=torch.int32, device=device)
    first_in_flight = torch.full((1,), oldest, dtype=torch.int32, device=device)
    select_victims_into(priority, None, last_used, pinned, first_in_flight, num_wanted, counts, victims)
    return victims


def select_victims_into(
    priority: Tensor,
    batch_number: Tensor | None,
    last_used: Tensor,
    pinned: Tensor,
    oldest: Tensor,
    num_wanted: Tensor,
    counts: Tensor,
    victims: Tensor,
    scan: Tensor | None = None,
) -> None:
    """`select_victims` with all its numbers on the device. `victims` is not written behind the last victim.

    Args:
        batch_number: int32 [1], of the planned batch, if priorities are those of the lookahead policy without counts.
        oldest: int32 [1].
        counts: int32 [NUM_COUNTS], zero. The sum of the first 256 becomes the number of evictable slots.
        scan: int32 [2], the first slot to scan and how many slots, with slot 0 behind the last one; None for all slots.
            The victims are in the order of the scan, and of slots with equal priorities the first one scanned is
            evicted first.
    """
    num_slots, max_victims = priority.numel(), victims.numel()
    if num_slots == 0 or max_victims == 0:
        return
    block, num_warps = _SMALL_BLOCK if max_victims <= _FEW_VICTIMS else _LARGE_BLOCK
    num_blocks = triton.cdiv(num_slots, block)
    max_programs = _MAX_PROGRAMS
    if scan is not None:  # a scan has a few times as many slots as there are rows to place at most
        max_programs = min(_MAX_PROGRAMS, max(16, triton.cdiv(2 * max_victims, block)))
    grid = (min(num_blocks, max_programs),)
    slots = (priority, batch_number, last_used, pinned.view(torch.uint8), oldest, num_wanted, counts, num_slots, scan)
    num_bytes = 4 if batch_number is None else 1
    if num_bytes == 1:
        block_counts = torch.empty((num_blocks, 256), dtype=torch.int32, device=priority.device)
        _count_bytes[grid](*slots, block_counts, STEP=0, BLOCK=block, num_warps=num_warps)
    else:
        for step in range(num_bytes):
            _count_bytes[grid](*slots, None, STEP=step, BLOCK=block, num_warps=num_warps)
        # int32 [2, blocks]: how many slots of each block are below the limit, and how many are at it
        block_counts = torch.empty((2, num_blocks), dtype=torch.int32, device=priority.device)
        _count_chosen[grid](*slots, block_counts, num_blocks, NUM_BYTES=num_bytes, BLOCK=block, num_warps=num_warps)
    _compact[grid](
        *slots, block_counts, num_blocks, victims, max_victims, NUM_BYTES=num_bytes, BLOCK=block,
        CHUNK=_CHUNK_OF_BYTES if num_bytes == 1 else _CHUNK, num_warps=num_warps,
    )  # fmt: skip
