"""The kernels of the set-associative index: find a row among the ways of its set, and choose ways for missing rows.

All missing rows of a set join the list of that set. They arrive in any order, but then each of them counts how many of
the list come before it in the batch, so the result does not depend on the order of arrival. A set whose list is full
has more missing rows than ways, and the plan does not fit.
"""

import triton
import triton.language as tl

from hotrows.ops.rows import NO_ROW, NO_SLOT

_NO_ROW, _NO_SLOT = tl.constexpr(NO_ROW), tl.constexpr(NO_SLOT)
WAYS = tl.constexpr(16)
CHOOSE_WARPS = 4  # of `choose_ways`, which works on all ways of every row of a block
_SHIFT = tl.constexpr(32)  # a set's count is below the number of the plan that it belongs to


@triton.jit
def find_ways(slot_row, row, real, num_sets):
    """The slot of each row that is searched for, NO_SLOT where it is absent."""
    first = (row % num_sets) * WAYS
    slot = tl.full(row.shape, _NO_SLOT, tl.int32)
    for way in tl.static_range(WAYS):
        there = tl.load(slot_row + first + way, mask=real, other=_NO_ROW)
        slot = tl.where(real & (there == row), (first + way).to(tl.int32), slot)
    return slot


@triton.jit
def join_set(set_counts, set_members, row, position, missing, plan_number, num_sets):
    """Add missing rows to the list of their set.

    Args:
        set_counts: int64 [sets], how many rows have joined, below the number of the plan that they belong to. So a
            count of an earlier plan is smaller than this plan's zero, and nothing needs to be reset between plans.
        set_members: int32 [sets, WAYS], the positions of the first WAYS rows that have joined.
    """
    of_set = tl.where(missing, row % num_sets, 0)
    zero = plan_number.to(tl.int64) << _SHIFT
    one = tl.full(row.shape, 1, tl.int64)
    tl.atomic_max(set_counts + of_set, one * zero, mask=missing, sem="relaxed")
    arrival = tl.atomic_add(set_counts + of_set, one, mask=missing, sem="relaxed") - zero
    tl.store(set_members + of_set * WAYS + arrival, position.to(tl.int32), mask=missing & (arrival < WAYS))


@triton.jit(do_not_specialize=["num_sets"])
def choose_ways(
    rows, counts_on_device, stride, request_buffer, plan_number, oldest, found, set_counts, set_members, num_sets,
    priority, last_used, pinned, chosen, num_unplaced,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Choose a slot for each missing row: the k-th one of a set takes the k-th evictable way by (priority, way).

    Args:
        found: the slot of each row, negative if it is missing.
        chosen: int32, the slot of each missing row, at the row's position.
        num_unplaced: int32 [1], to which the number of rows without a slot is added.
    """
    buffer = tl.load(request_buffer).to(tl.int64)
    rows += buffer * stride
    count = tl.load(counts_on_device + buffer * 2)
    zero = tl.load(plan_number).to(tl.int64) << _SHIFT
    first_in_flight = tl.load(oldest)
    way = tl.arange(0, WAYS)[None, :]
    block = tl.program_id(0)
    while block * BLOCK < count:
        position = block * BLOCK + tl.arange(0, BLOCK)
        inside = position < count
        missing = inside & (tl.load(found + position, mask=inside, other=0) < 0)
        row = tl.load(rows + position, mask=missing, other=0)
        of_set = row % num_sets
        joined = tl.load(set_counts + of_set, mask=missing, other=0) - zero
        slot = of_set[:, None] * WAYS + way
        listed = missing[:, None] & (way < joined[:, None])
        member = tl.load(set_members + slot, mask=listed, other=0)
        rank = tl.sum((listed & (member < position[:, None])).to(tl.int32), 1)

        used = tl.load(last_used + slot, mask=missing[:, None], other=0)
        is_pinned = tl.load(pinned + slot, mask=missing[:, None], other=1)
        evictable = missing[:, None] & (used < first_in_flight) & (is_pinned == 0)
        key = tl.load(priority + slot, mask=missing[:, None], other=0)
        better = tl.zeros([BLOCK, WAYS], tl.int32)  # for each way, how many evictable ones go before it
        for other in tl.static_range(WAYS):
            of_other = way == other
            other_key = tl.sum(tl.where(of_other, key, 0), 1)[:, None]
            other_goes = tl.sum((of_other & evictable).to(tl.int32), 1)[:, None]
            before = (other_key < key) | ((other_key == key) & (way > other))
            better += tl.where(before, other_goes, 0)
        mine = evictable & (better == rank[:, None]) & (joined <= WAYS)[:, None]
        victim = tl.max(tl.where(mine, slot.to(tl.int32), _NO_SLOT), 1)
        tl.store(chosen + position, victim, mask=missing)
        num_without = tl.sum((missing & (victim < 0)).to(tl.int32), 0)
        tl.atomic_add(num_unplaced, num_without, sem="relaxed")
        block += tl.num_programs(0)
