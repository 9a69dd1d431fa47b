"""Announcing and planning a batch in Triton: one pass over its unique rows before victims are chosen, one after.

A program takes one block of unique rows after the other, and a bounded number of programs takes all of them: only the
device knows how many rows there are, and training, which runs at the same time, must not be slowed down.
"""

import triton
import triton.language as tl

from hotrows.ops.hash_table import ERASED
from hotrows.ops.hash_table.kernel import erase_cells, find_cells, insert_cells
from hotrows.ops.plan.kernel_sets import find_ways, join_set
from hotrows.ops.rows import NO_ROW, NO_SLOT
from hotrows.ops.unique.kernel_parts import MAX_PARTS

_ERASED, _NO_ROW, _NO_SLOT = tl.constexpr(ERASED), tl.constexpr(NO_ROW), tl.constexpr(NO_SLOT)
_MAX_COUNTS = tl.constexpr(2 * MAX_PARTS)  # two counts of each part, see `unique_ids`

# Inputs that the host writes for each iteration, int32. Buffers are among them, so that one captured graph serves all
# request buffers and plan buffers. If batches are coalesced, the inputs are those of all of them together.
PLAN_NUMBER = tl.constexpr(0)  # number of the plan, or of the last plan of coalesced batches
OLDEST = tl.constexpr(1)  # the first plan in flight
BATCH_NUMBER = tl.constexpr(2)  # the number that the planned batch was announced under
SCAN = tl.constexpr(3)  # the first slot to scan for victims, then how many slots
REQUEST_BUFFER = tl.constexpr(5)  # where the planned batch is
PLAN_BUFFERS = tl.constexpr(6)  # where its plan goes: the first plan buffer divided by the number of parts
ANNOUNCED_NUMBER = tl.constexpr(7)  # the number that another batch is announced under
ANNOUNCED_BUFFER = tl.constexpr(8)  # the request buffer of that batch
NUM_INPUTS = 16
ALIGNED = tl.constexpr(4)  # int32 numbers from one plan buffer's count to the next, which keeps each of them aligned

# Sums that the kernels of one plan make, int32. They are zero before.
MISSES = tl.constexpr(0)
EVICTIONS = tl.constexpr(1)
ERASURES = tl.constexpr(2)
UNPLACED = tl.constexpr(3)  # missing rows that find no way in their set
NUM_SUMS = 4

BLOCK = 64  # rows, with one warp, so that a long search in a hash table delays few other rows
NUM_WARPS = 1
MAX_PROGRAMS = 132 * 4
SPREAD, SPREAD_WARPS = 1024, 4
CHUNK = 512  # blocks whose misses are summed at a time


@triton.jit
def _find_slots(slot_of, keys, slot_row, row, real, num_cells, INDEX: tl.constexpr):
    """The slots of rows in the cache, NO_SLOT for absent ones."""
    if INDEX == "direct":
        slot = tl.load(slot_of + row, mask=real, other=_NO_SLOT)
    elif INDEX == "hash":
        cell = find_cells(keys, row, real, num_cells)
        slot = tl.load(slot_of + cell, mask=cell >= 0, other=_NO_SLOT)
    else:
        slot = find_ways(slot_row, row, real, num_cells)
    return slot


@triton.jit
def _bit(batch_number):
    return tl.full([], 1, tl.uint64) << (batch_number & 63).to(tl.uint64)


@triton.jit
def _next_use(uses, start):
    """The first of the 64 batches from `start` on whose bit is set in `uses`, which is not 0."""
    rotation = (start & 63).to(tl.uint64)
    rotated = ((uses >> rotation) | ((uses << (63 - rotation)) << 1)).to(tl.int64, bitcast=True)
    lowest = (rotated & -rotated).to(tl.uint64, bitcast=True)
    # The exponent of a power of two is the position of its bit.
    exponent = (lowest.to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1023
    return start + exponent.to(tl.int32)


@triton.jit
def _fits(sums, evictable, INDEX: tl.constexpr):
    """Whether every missing row has a slot.

    Args:
        evictable: int32 [256], whose sum is the number of evictable slots; for an index that gives a row any slot.
    """
    if INDEX == "set-associative":
        fits = tl.load(sums + UNPLACED) == 0
    else:
        fits = tl.load(sums + MISSES) <= tl.sum(tl.load(evictable + tl.arange(0, 256)), 0)
    return fits


@triton.jit(do_not_specialize=["num_zeroed", "num_iterations"])
def begin(
    host_inputs, iteration, num_iterations, inputs, counts_on_device, union_counts_on_device, zeroed, num_zeroed,
    ANNOUNCES: tl.constexpr, PARTS: tl.constexpr, NUM_INPUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fetch the inputs of the next iteration from the host, and zero what is summed; one program of one warp.

    Args:
        host_inputs: int32 [num_iterations, NUM_INPUTS], which the host writes as a ring buffer.
        iteration: int64 [1], how many iterations there were.
        counts_on_device: int32 [request buffers · PARTS, 2].
        union_counts_on_device: int32 [request buffers, 2], or None.
    """
    now = tl.load(iteration)
    each = tl.arange(0, NUM_INPUTS)
    found = tl.load(host_inputs + (now % num_iterations) * NUM_INPUTS + each)
    tl.store(inputs + each, found)
    tl.store(iteration, now + 1)
    if ANNOUNCES:
        buffer = tl.sum(tl.where(each == ANNOUNCED_BUFFER, found, 0), 0)
        counts = counts_on_device + buffer * (2 * PARTS)
        position = tl.arange(0, _MAX_COUNTS)
        tl.store(counts + position, tl.zeros([_MAX_COUNTS], tl.int32), mask=position < 2 * PARTS)
        if union_counts_on_device is not None:
            tl.store(union_counts_on_device + buffer * 2 + tl.arange(0, 2), tl.zeros([2], tl.int32))
    if zeroed is not None:
        position = tl.arange(0, BLOCK)
        tl.store(zeroed + position, tl.zeros([BLOCK], tl.int32), mask=position < num_zeroed)


@triton.jit
def _announce(
    rows, num, inputs, slot_of, keys, slot_row, num_cells, use_keys, uses, num_use_cells, priority,
    INDEX: tl.constexpr, NEEDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Record that a batch will need its rows: in the next-use table, and in the priority of those in the cache."""
    count = tl.load(num)
    batch_number = tl.load(inputs + ANNOUNCED_NUMBER)
    start = tl.program_id(0) * BLOCK
    while start < count:
        position = start + tl.arange(0, BLOCK)
        row = tl.load(rows + position, mask=position < count, other=_NO_ROW)
        real = row >= 0
        slot = _find_slots(slot_of, keys, slot_row, row, real, num_cells, INDEX)
        cached = slot >= 0
        # A row that an earlier batch needs has a higher priority already.
        now = tl.load(priority + slot, mask=cached, other=0)
        tl.store(priority + slot, tl.maximum(now, NEEDED - batch_number), mask=cached)
        known = find_cells(use_keys, row, real, num_use_cells)
        new = insert_cells(use_keys, row, real & (known < 0), position.to(tl.int64), num_use_cells)
        mask = tl.load(uses + known, mask=known >= 0, other=0).to(tl.uint64, bitcast=True)
        target = tl.where(known >= 0, known, new)
        tl.store(uses + target, (mask | _bit(batch_number)).to(tl.int64, bitcast=True), mask=real)
        start += tl.num_programs(0) * BLOCK


@triton.jit
def _look_up(
    rows, num, inputs, slot_of, keys, slot_row, num_cells, set_counts, set_members, last_used, found, misses, sums,
    INDEX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Find the slots of rows in the cache, which this plan uses from now on, and count the misses of each block."""
    count = tl.load(num)
    plan_number = tl.load(inputs + PLAN_NUMBER)
    block = tl.program_id(0)
    while block * BLOCK < count:
        position = block * BLOCK + tl.arange(0, BLOCK)
        inside = position < count
        row = tl.load(rows + position, mask=inside, other=_NO_ROW)
        slot = _find_slots(slot_of, keys, slot_row, row, inside, num_cells, INDEX)
        tl.store(last_used + slot, plan_number, mask=slot >= 0)
        tl.store(found + position, slot, mask=inside)
        missing = inside & (slot < 0)
        if INDEX == "set-associative":
            join_set(set_counts, set_members, row, position, missing, plan_number, num_cells)
        num_missing = tl.sum(missing.to(tl.int32), 0)
        tl.store(misses + block, num_missing)
        tl.atomic_add(sums + MISSES, num_missing, sem="relaxed")
        block += tl.num_programs(0)


@triton.jit(do_not_specialize=["num_cells", "num_use_cells"])
def announce_and_look_up(
    rows, counts_on_device, stride, inputs, slot_of, keys, slot_row, num_cells, set_counts, set_members,
    use_keys, uses, num_use_cells, priority, last_used, found, misses, sums,
    ANNOUNCES: tl.constexpr, PLANS: tl.constexpr, INDEX: tl.constexpr, NEEDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Announce one batch and look up another one at the same time, each in programs of its own, or one of the two.

    Neither reads what the other writes: the announcement writes priorities and the next-use table, the lookup writes
    which slots are used.
    """
    role = tl.program_id(1)
    if ANNOUNCES:
        if role == 0:
            buffer = tl.load(inputs + ANNOUNCED_BUFFER).to(tl.int64)
            _announce(
                rows + buffer * stride, counts_on_device + buffer * 2, inputs, slot_of, keys, slot_row, num_cells,
                use_keys, uses, num_use_cells, priority, INDEX, NEEDED, BLOCK,
            )  # fmt: skip
        role -= 1
    if PLANS:  # noqa: SIM102 (the compiler knows this condition, but not the inner one)
        if role == 0:
            buffer = tl.load(inputs + REQUEST_BUFFER).to(tl.int64)
            _look_up(
                rows + buffer * stride, counts_on_device + buffer * 2, inputs, slot_of, keys, slot_row, num_cells,
                set_counts, set_members, last_used, found, misses, sums, INDEX, BLOCK,
            )  # fmt: skip


@triton.jit(do_not_specialize=["num_cells", "num_use_cells"])
def place(
    rows, starts, counts_on_device, stride, inputs, found, misses, sums, evictable, chosen,
    slot_row, last_used, priority, seen, rank_of_row,
    slot_of, keys, cell_of, num_cells, use_keys, uses, num_use_cells,
    row_slots, plan_buffer_stride, move_slots, move_out, move_in,
    INDEX: tl.constexpr, POLICY: tl.constexpr, NEEDED: tl.constexpr, MAX_FREQUENCY: tl.constexpr,
    EXACTLY_SEEN: tl.constexpr, STEPS_BELOW: tl.constexpr, MAX_SEEN: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Give every missing row its chosen slot, if there are enough slots, and update the index and the policy.

    Args:
        chosen: int32, the slot of each missing row: of the k-th one at position k, or, for the set-associative index,
            of each one at its position among all rows.
    """
    buffer = tl.load(inputs + REQUEST_BUFFER).to(tl.int64)
    rows += buffer * stride
    starts += buffer * stride
    row_slots += tl.load(inputs + PLAN_BUFFERS).to(tl.int64) * plan_buffer_stride
    count = tl.load(counts_on_device + buffer * 2)
    plan_number = tl.load(inputs + PLAN_NUMBER)
    batch_number = tl.load(inputs + BATCH_NUMBER)
    fits = _fits(sums, evictable, INDEX)
    block = tl.program_id(0)
    summed = tl.zeros([], tl.int32)  # blocks whose misses are in the sum
    misses_before = tl.zeros([], tl.int32)
    while (block * BLOCK < count) & fits:
        while summed < block:
            other = summed + tl.arange(0, CHUNK)
            misses_before += tl.sum(tl.load(misses + other, mask=other < block, other=0), 0)
            summed += CHUNK
        summed = block
        position = block * BLOCK + tl.arange(0, BLOCK)
        inside = position < count
        row = tl.load(rows + position, mask=inside, other=_NO_ROW)
        slot = tl.load(found + position, mask=inside, other=0)
        fresh = inside & (slot < 0)
        rank = misses_before + tl.cumsum(fresh.to(tl.int32), 0) - 1
        if INDEX == "set-associative":
            victim = tl.load(chosen + position, mask=fresh, other=0)
        else:
            victim = tl.load(chosen + rank, mask=fresh, other=0)
        slot = tl.where(fresh, victim, slot)
        leaving = tl.load(slot_row + victim, mask=fresh, other=_NO_ROW)
        leaves = fresh & (leaving >= 0)
        tl.store(move_slots + rank, victim, mask=fresh)
        tl.store(move_out + rank, leaving, mask=fresh)
        tl.store(move_in + rank, row, mask=fresh)
        tl.atomic_add(sums + EVICTIONS, tl.sum(leaves.to(tl.int32), 0), sem="relaxed")

        # No row both leaves and enters: a row that leaves is in the cache, and a row that enters is not.
        if INDEX == "direct":
            tl.store(slot_of + leaving, _NO_SLOT, mask=leaves)
            tl.store(slot_of + row, victim, mask=fresh)
        elif INDEX == "hash":
            left = tl.load(cell_of + victim, mask=leaves, other=0)
            tl.store(keys + left, tl.full([BLOCK], _ERASED, tl.int64), mask=leaves)
            cell = insert_cells(keys, row, fresh, position.to(tl.int64), num_cells)
            tl.store(slot_of + cell, victim, mask=fresh)
            tl.store(cell_of + victim, cell.to(tl.int32), mask=fresh)
        tl.store(slot_row + victim, row, mask=fresh)
        tl.store(last_used + victim, plan_number, mask=fresh)
        tl.store(row_slots + position, slot, mask=inside)

        if POLICY == "lru":
            tl.store(priority + slot, plan_number, mask=inside)
        else:
            begin = tl.load(starts + position, mask=inside, other=0)
            occurrences = tl.load(starts + position + 1, mask=inside, other=0) - begin
        if POLICY == "lfu":
            count_now = tl.load(priority + slot, mask=inside & ~fresh, other=0) + occurrences
            tl.store(priority + slot, tl.minimum(count_now, MAX_FREQUENCY), mask=inside)
        if POLICY == "lookahead":
            if rank_of_row is None:
                count_now = tl.load(seen + slot, mask=inside & ~fresh, other=0) + occurrences
                count_now = tl.minimum(count_now, MAX_FREQUENCY)
            else:
                count_now = tl.maximum(MAX_FREQUENCY - tl.load(rank_of_row + row, mask=inside, other=0), 0)
            tl.store(seen + slot, count_now, mask=inside)
            frequency = count_now
            if rank_of_row is None:  # the same steps as in `policies.lookahead`
                above = (count_now.to(tl.float32).to(tl.int32, bitcast=True) >> 20) - STEPS_BELOW
                frequency = tl.where(count_now < EXACTLY_SEEN, count_now, tl.minimum(above, MAX_SEEN))
            use_cell = find_cells(use_keys, row, inside, num_use_cells)
            known = use_cell >= 0
            mask = tl.load(uses + use_cell, mask=known, other=0).to(tl.uint64, bitcast=True)
            mask = (mask | _bit(batch_number)) ^ _bit(batch_number)
            tl.store(uses + use_cell, mask.to(tl.int64, bitcast=True), mask=known)
            erased = erase_cells(use_keys, use_cell, known & (mask == 0), num_use_cells)
            tl.atomic_add(sums + ERASURES, tl.sum(erased.to(tl.int32), 0), sem="relaxed")
            next_use = _next_use(tl.where(mask == 0, tl.full([BLOCK], 1, tl.uint64), mask), batch_number + 1)
            tl.store(priority + slot, tl.where(mask == 0, frequency, NEEDED - next_use), mask=inside)
        block += tl.num_programs(0)


@triton.jit(do_not_specialize=["num_lookups"])
def spread(
    rows, counts_on_device, inverse, order, starts, block_rows, planned_slots, in_union, sums, evictable, inputs,
    slots_to, row_slots_to, rows_to, num_to, inverse_to, order_to, starts_to, block_rows_to, num_moves, counts,
    num_lookups, stride, block_stride,
    INDEX: tl.constexpr, NUM_COUNTS: tl.constexpr, PARTS: tl.constexpr, PER_BLOCK_ROW: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the plan buffers: the slots of all lookups, the unique rows, and the counts that the host reads back.

    Args:
        planned_slots: the slots of the union's rows; of one part, they are in its plan buffer already. None if the
            slot of every row is its own number.
        in_union: the position of each part's unique rows in the union; None for one part.
    """
    part = tl.program_id(1)
    at = tl.load(inputs + REQUEST_BUFFER).to(tl.int64) * PARTS + part
    to = tl.load(inputs + PLAN_BUFFERS).to(tl.int64) * PARTS + part
    rows += at * stride
    inverse += at * stride
    order += at * stride
    starts += at * stride
    block_rows += at * block_stride
    row_slots_to += to * stride
    slots_to += to * stride
    rows_to += to * stride
    inverse_to += to * stride
    order_to += to * stride
    starts_to += to * stride
    block_rows_to += to * block_stride
    counts += to * NUM_COUNTS
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = position < num_lookups
    count = tl.load(counts_on_device + at * 2)
    row = tl.load(rows + position, mask=inside, other=_NO_ROW)
    unique = tl.load(inverse + position, mask=inside, other=-1)
    has_row = unique >= 0
    if planned_slots is None:
        slot = tl.load(rows + unique, mask=has_row, other=_NO_SLOT).to(tl.int32)
        tl.store(row_slots_to + position, row.to(tl.int32), mask=inside)
    elif in_union is None:
        slot = tl.load(row_slots_to + unique, mask=has_row, other=_NO_SLOT)
    else:
        in_union += at * stride
        slot = tl.load(planned_slots + tl.load(in_union + unique, mask=has_row, other=0), mask=has_row, other=_NO_SLOT)
        real = position < count
        row_slot = tl.load(planned_slots + tl.load(in_union + position, mask=real, other=0), mask=real, other=_NO_SLOT)
        tl.store(row_slots_to + position, row_slot, mask=inside)
    tl.store(slots_to + position, slot, mask=inside)
    tl.store(inverse_to + position, unique, mask=inside)
    tl.store(order_to + position, tl.load(order + position, mask=inside, other=0), mask=inside)
    tl.store(rows_to + position, row, mask=inside)
    tl.store(starts_to + position, tl.load(starts + position, mask=position <= num_lookups, other=0),
             mask=position <= num_lookups)  # fmt: skip
    begins = inside & (position % PER_BLOCK_ROW == 0)
    block = position // PER_BLOCK_ROW
    tl.store(block_rows_to + block, tl.load(block_rows + block, mask=begins, other=0), mask=begins)

    if tl.program_id(0) == 0:
        misses = tl.zeros([], tl.int32)
        evictions = tl.zeros([], tl.int32)
        erasures = tl.zeros([], tl.int32)
        fits = tl.full([], 1, tl.int32)
        if planned_slots is not None:
            is_first = (part == 0).to(tl.int32)  # the first part has the counts of the moves of all parts
            misses = tl.load(sums + MISSES)
            evictions = tl.load(sums + EVICTIONS) * is_first
            erasures = tl.load(sums + ERASURES) * is_first
            fits = _fits(sums, evictable, INDEX).to(tl.int32)
            tl.store(num_moves, misses * fits, mask=is_first > 0)
            misses *= is_first
        tl.store(num_to + to * ALIGNED, count)
        # These are the fields of Counts, in their order.
        tl.store(counts + 0, tl.load(starts + num_lookups))
        tl.store(counts + 1, count)
        tl.store(counts + 2, count - misses)
        tl.store(counts + 3, misses)
        tl.store(counts + 4, misses * fits)
        tl.store(counts + 5, evictions)
        tl.store(counts + 6, 0)
        tl.store(counts + 7, fits)
        tl.store(counts + 8, erasures)
