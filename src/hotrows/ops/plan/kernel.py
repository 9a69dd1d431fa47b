"""Announcing and planning a batch in Triton: one walk over its distinct rows each for what comes before the choice of
victims and for what comes after it.

A program takes a block of distinct rows at a time, and a bounded number of programs takes them all: how many rows there
are is known on the device alone, and training beside must not be slowed down.
"""

import triton
import triton.language as tl

from hotrows.ops.hash_table import ERASED
from hotrows.ops.hash_table.kernel import erase_cells, find_cells, insert_cells
from hotrows.ops.rows import NO_ROW, NO_SLOT

_ERASED, _NO_ROW, _NO_SLOT = tl.constexpr(ERASED), tl.constexpr(NO_ROW), tl.constexpr(NO_SLOT)

# Numbers that the host writes for each turn, int32: among them places and seats, so that one recording serves all.
BATCH = tl.constexpr(0)  # running number of the plan
OLDEST = tl.constexpr(1)  # the first plan in flight
NUMBER = tl.constexpr(2)  # under which the planned batch was announced
SCAN = tl.constexpr(3)  # the first slot to look at for victims, and how many slots
PLACE = tl.constexpr(5)  # where the planned batch waits
SEAT = tl.constexpr(6)  # where its plan goes
COMING = tl.constexpr(7)  # under which number another batch is announced
COMING_PLACE = tl.constexpr(8)  # and where it will wait
# Where several batches are announced and planned together, as parts of a party, all of these are the party's.
NUM_NUMBERS = 16
ALIGNED = tl.constexpr(4)  # numbers from one seat's count to the next: aligned as memory of its own is

# Numbers that the kernels of one plan add up, int32, zero before.
MISSES = tl.constexpr(0)
EVICTIONS = tl.constexpr(1)
ERASURES = tl.constexpr(2)
NUM_SUMS = 4  # of which the last is none: what is behind them is aligned

BLOCK = 64  # with one warp, so that a slow search in a hash table holds up few others
NUM_WARPS = 1
MOST_PROGRAMS = 132 * 4
SPREAD, SPREAD_WARPS = 1024, 4
AT_ONCE = 512  # counts of blocks that are added up at a time


@triton.jit
def _slot_of(slot_of, keys, row, real, num_cells, DIRECT: tl.constexpr):
    """Slots of rows in the cache: an array by row, or (keys, slot by cell)."""
    if DIRECT:
        slot = tl.load(slot_of + row, mask=real, other=_NO_SLOT)
    else:
        cell = find_cells(keys, row, real, num_cells)
        slot = tl.load(slot_of + cell, mask=cell >= 0, other=_NO_SLOT)
    return slot


@triton.jit
def _bit(number):
    return tl.full([], 1, tl.uint64) << (number & 63).to(tl.uint64)


@triton.jit
def _next_use(uses, start):
    """The first of the 64 batches from `start` on whose bit is set in `uses`, which is not 0."""
    turn = (start & 63).to(tl.uint64)
    turned = ((uses >> turn) | ((uses << (63 - turn)) << 1)).to(tl.int64, bitcast=True)
    lowest = (turned & -turned).to(tl.uint64, bitcast=True)
    # the exponent of a power of two
    exponent = (lowest.to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1023
    return start + exponent.to(tl.int32)


@triton.jit(do_not_specialize=["num_zeroed", "num_turns"])
def begin(
    on_host, turn, num_turns, numbers, noted, noted_together, zeroed, num_zeroed,
    ANNOUNCES: tl.constexpr, PARTS: tl.constexpr, NUMBERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fetch the numbers of the next turn from the host, and set to zero what is added up; one program of one warp.

    Args:
        on_host: int32 [num_turns, NUMBERS], written by the host turn by turn. turn: int64 [1], how many there were.
        noted: int32 [places · PARTS, 2]. noted_together: int32 [places, 2], or None.
    """
    now = tl.load(turn)
    each = tl.arange(0, NUMBERS)
    found = tl.load(on_host + (now % num_turns) * NUMBERS + each)
    tl.store(numbers + each, found)
    tl.store(turn, now + 1)
    if ANNOUNCES:
        place = tl.sum(tl.where(each == COMING_PLACE, found, 0), 0)
        tl.store(noted + place * (2 * PARTS) + tl.arange(0, 2 * PARTS), tl.zeros([2 * PARTS], tl.int32))
        if noted_together is not None:
            tl.store(noted_together + place * 2 + tl.arange(0, 2), tl.zeros([2], tl.int32))
    if zeroed is not None:
        position = tl.arange(0, BLOCK)
        tl.store(zeroed + position, tl.zeros([BLOCK], tl.int32), mask=position < num_zeroed)


@triton.jit
def _announce(
    rows, num, numbers, slot_of, keys, num_cells, up_keys, up_uses, num_up_cells, priority,
    DIRECT: tl.constexpr, NEEDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Note that a batch will need its rows: in the table of upcoming uses, and in the priority of cached ones."""
    count = tl.load(num)
    number = tl.load(numbers + COMING)
    start = tl.program_id(0) * BLOCK
    while start < count:
        position = start + tl.arange(0, BLOCK)
        row = tl.load(rows + position, mask=position < count, other=_NO_ROW)
        real = row >= 0
        slot = _slot_of(slot_of, keys, row, real, num_cells, DIRECT)
        cached = slot >= 0
        # an earlier need is the higher priority already
        now = tl.load(priority + slot, mask=cached, other=0)
        tl.store(priority + slot, tl.maximum(now, NEEDED - number), mask=cached)
        known = find_cells(up_keys, row, real, num_up_cells)
        new = insert_cells(up_keys, row, real & (known < 0), position.to(tl.int64), num_up_cells)
        uses = tl.load(up_uses + known, mask=known >= 0, other=0).to(tl.uint64, bitcast=True)
        target = tl.where(known >= 0, known, new)
        tl.store(up_uses + target, (uses | _bit(number)).to(tl.int64, bitcast=True), mask=real)
        start += tl.num_programs(0) * BLOCK


@triton.jit
def _look_up(
    rows, num, numbers, slot_of, keys, num_cells, last_used, found, misses, sums,
    DIRECT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Slots of the rows that are in the cache, which from now on are used by this batch; misses by block and in all."""
    count = tl.load(num)
    batch = tl.load(numbers + BATCH)
    block = tl.program_id(0)
    while block * BLOCK < count:
        position = block * BLOCK + tl.arange(0, BLOCK)
        inside = position < count
        row = tl.load(rows + position, mask=inside, other=_NO_ROW)
        slot = _slot_of(slot_of, keys, row, inside, num_cells, DIRECT)
        tl.store(last_used + slot, batch, mask=slot >= 0)
        tl.store(found + position, slot, mask=inside)
        missing = tl.sum((inside & (slot < 0)).to(tl.int32), 0)
        tl.store(misses + block, missing)
        tl.atomic_add(sums + MISSES, missing, sem="relaxed")
        block += tl.num_programs(0)


@triton.jit(do_not_specialize=["num_cells", "num_up_cells"])
def announce_and_look_up(
    rows, noted, stride, numbers, slot_of, keys, num_cells,
    up_keys, up_uses, num_up_cells, priority, last_used, found, misses, sums,
    ANNOUNCES: tl.constexpr, PLANS: tl.constexpr, DIRECT: tl.constexpr, NEEDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Announce one batch, look up another: by programs of their own, beside each other. One may be missing.

    Neither reads what the other writes: the one writes priorities and upcoming uses, the other which slots are used.
    """
    role = tl.program_id(1)
    if ANNOUNCES:
        if role == 0:
            at = tl.load(numbers + COMING_PLACE).to(tl.int64)
            _announce(
                rows + at * stride, noted + at * 2, numbers, slot_of, keys, num_cells, up_keys, up_uses, num_up_cells,
                priority, DIRECT, NEEDED, BLOCK,
            )  # fmt: skip
        role -= 1
    if PLANS:  # noqa: SIM102 (this is known when it is compiled, the other is not)
        if role == 0:
            at = tl.load(numbers + PLACE).to(tl.int64)
            _look_up(
                rows + at * stride, noted + at * 2, numbers, slot_of, keys, num_cells, last_used, found, misses, sums,
                DIRECT, BLOCK,
            )  # fmt: skip


@triton.jit(do_not_specialize=["num_cells", "num_up_cells"])
def place(
    rows, starts, noted, stride, numbers, found, misses, sums, evictable, chosen,
    slot_row, last_used, priority, seen, place_of,
    slot_of, keys, cell_of, num_cells, up_keys, up_uses, num_up_cells,
    row_slots, seat_stride, slots_to_move, rows_to_move_out, rows_to_move_in,
    DIRECT: tl.constexpr, POLICY: tl.constexpr, NEEDED: tl.constexpr, MOST_FREQUENT: tl.constexpr,
    EXACTLY_SEEN: tl.constexpr, STEPS_BELOW: tl.constexpr, MOST_SEEN: tl.constexpr,
    BLOCK: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Give every missing row one of the chosen slots, if there are enough; tell the index and the policy."""
    at = tl.load(numbers + PLACE).to(tl.int64)
    rows += at * stride
    starts += at * stride
    row_slots += tl.load(numbers + SEAT).to(tl.int64) * seat_stride
    count = tl.load(noted + at * 2)
    batch = tl.load(numbers + BATCH)
    number = tl.load(numbers + NUMBER)
    fits = tl.load(sums + MISSES) <= tl.sum(tl.load(evictable + tl.arange(0, 256)), 0)
    block = tl.program_id(0)
    summed = tl.zeros([], tl.int32)  # blocks whose misses are in the sum
    misses_before = tl.zeros([], tl.int32)
    while (block * BLOCK < count) & fits:
        while summed < block:
            other = summed + tl.arange(0, AT_ONCE)
            misses_before += tl.sum(tl.load(misses + other, mask=other < block, other=0), 0)
            summed += AT_ONCE
        summed = block
        position = block * BLOCK + tl.arange(0, BLOCK)
        inside = position < count
        row = tl.load(rows + position, mask=inside, other=_NO_ROW)
        slot = tl.load(found + position, mask=inside, other=0)
        fresh = inside & (slot < 0)
        rank = misses_before + tl.cumsum(fresh.to(tl.int32), 0) - 1
        victim = tl.load(chosen + rank, mask=fresh, other=0)
        slot = tl.where(fresh, victim, slot)
        leaving = tl.load(slot_row + victim, mask=fresh, other=_NO_ROW)
        leaves = fresh & (leaving >= 0)
        tl.store(slots_to_move + rank, victim, mask=fresh)
        tl.store(rows_to_move_out + rank, leaving, mask=fresh)
        tl.store(rows_to_move_in + rank, row, mask=fresh)
        tl.atomic_add(sums + EVICTIONS, tl.sum(leaves.to(tl.int32), 0), sem="relaxed")

        # A row that leaves is none that comes: it is in the cache, those are not.
        if DIRECT:
            tl.store(slot_of + leaving, _NO_SLOT, mask=leaves)
            tl.store(slot_of + row, victim, mask=fresh)
        else:
            left = tl.load(cell_of + victim, mask=leaves, other=0)
            tl.store(keys + left, tl.full([BLOCK], _ERASED, tl.int64), mask=leaves)
            cell = insert_cells(keys, row, fresh, position.to(tl.int64), num_cells)
            tl.store(slot_of + cell, victim, mask=fresh)
            tl.store(cell_of + victim, cell.to(tl.int32), mask=fresh)
        tl.store(slot_row + victim, row, mask=fresh)
        tl.store(last_used + victim, batch, mask=fresh)
        tl.store(row_slots + position, slot, mask=inside)

        if POLICY == "lru":
            tl.store(priority + slot, batch, mask=inside)
        else:
            begin = tl.load(starts + position, mask=inside, other=0)
            occurrences = tl.load(starts + position + 1, mask=inside, other=0) - begin
        if POLICY == "lfu":
            times = tl.load(priority + slot, mask=inside & ~fresh, other=0) + occurrences
            tl.store(priority + slot, tl.minimum(times, MOST_FREQUENT), mask=inside)
        if POLICY == "lookahead":
            if place_of is None:
                times = tl.load(seen + slot, mask=inside & ~fresh, other=0) + occurrences
                times = tl.minimum(times, MOST_FREQUENT)
            else:
                times = tl.maximum(MOST_FREQUENT - tl.load(place_of + row, mask=inside, other=0), 0)
            tl.store(seen + slot, times, mask=inside)
            frequent = times
            if place_of is None:  # as `policies.lookahead` does
                above = (times.to(tl.float32).to(tl.int32, bitcast=True) >> 20) - STEPS_BELOW
                frequent = tl.where(times < EXACTLY_SEEN, times, tl.minimum(above, MOST_SEEN))
            needed = find_cells(up_keys, row, inside, num_up_cells)
            known = needed >= 0
            uses = tl.load(up_uses + needed, mask=known, other=0).to(tl.uint64, bitcast=True)
            uses = (uses | _bit(number)) ^ _bit(number)
            tl.store(up_uses + needed, uses.to(tl.int64, bitcast=True), mask=known)
            erased = erase_cells(up_keys, needed, known & (uses == 0), num_up_cells)
            tl.atomic_add(sums + ERASURES, tl.sum(erased.to(tl.int32), 0), sem="relaxed")
            soon = NEEDED - _next_use(tl.where(uses == 0, tl.full([BLOCK], 1, tl.uint64), uses), number + 1)
            tl.store(priority + slot, tl.where(uses == 0, frequent, soon), mask=inside)
        block += tl.num_programs(0)


@triton.jit(do_not_specialize=["num_lookups"])
def spread(
    rows, noted, inverse, order, starts, block_rows, planned_slots, in_all, sums, evictable, numbers,
    slots_to, row_slots_to, rows_to, num_to, inverse_to, order_to, starts_to, block_rows_to, num_to_move, counts,
    num_lookups, stride, block_stride,
    NUM_COUNTS: tl.constexpr, PARTS: tl.constexpr, PER_BLOCK_ROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Slots of the lookups; and what training and the host want to know, where they will look for it.

    Args:
        planned_slots: of the distinct rows of the party, or of the only part where they already are in its seat; None
            where every row is on the device, in the slot of its own number.
        in_all: for each distinct row of a part, which of the party's it is; None where there is one part.
    """
    part = tl.program_id(1)
    at = tl.load(numbers + PLACE).to(tl.int64) * PARTS + part
    to = tl.load(numbers + SEAT).to(tl.int64) * PARTS + part
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
    count = tl.load(noted + at * 2)
    row = tl.load(rows + position, mask=inside, other=_NO_ROW)
    unique = tl.load(inverse + position, mask=inside, other=-1)
    has_row = unique >= 0
    if planned_slots is None:
        slot = tl.load(rows + unique, mask=has_row, other=_NO_SLOT).to(tl.int32)
        tl.store(row_slots_to + position, row.to(tl.int32), mask=inside)
    elif in_all is None:
        slot = tl.load(row_slots_to + unique, mask=has_row, other=_NO_SLOT)
    else:
        in_all += at * stride
        slot = tl.load(planned_slots + tl.load(in_all + unique, mask=has_row, other=0), mask=has_row, other=_NO_SLOT)
        real = position < count
        row_slot = tl.load(planned_slots + tl.load(in_all + position, mask=real, other=0), mask=real, other=_NO_SLOT)
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
            leads = (part == 0).to(tl.int32)  # the first part has the counts of the moves of all
            misses = tl.load(sums + MISSES)
            evictions = tl.load(sums + EVICTIONS) * leads
            erasures = tl.load(sums + ERASURES) * leads
            fits = (misses <= tl.sum(tl.load(evictable + tl.arange(0, 256)), 0)).to(tl.int32)
            tl.store(num_to_move, misses * fits, mask=leads > 0)
            misses *= leads
        tl.store(num_to + to * ALIGNED, count)
        # the fields of Counts
        tl.store(counts + 0, tl.load(starts + num_lookups))
        tl.store(counts + 1, count)
        tl.store(counts + 2, count - misses)
        tl.store(counts + 3, misses)
        tl.store(counts + 4, misses * fits)
        tl.store(counts + 5, evictions)
        tl.store(counts + 6, 0)
        tl.store(counts + 7, fits)
        tl.store(counts + 8, erasures)
