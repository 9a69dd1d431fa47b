"""Run the real planner over a trace without any rows, to compare policies and sizes."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hotrows.batch import to_tensor
from hotrows.cache.indexes import INDEXES, check_index, make_index
from hotrows.cache.planning.planner import EagerPlanner
from hotrows.cache.planning.protocol import Counts, Placement
from hotrows.cache.policies import Access, Policy, make_policy
from hotrows.cache.policies.next_use import WINDOW_LIMIT
from hotrows.cache.slots import BYTES_PER_SLOT, Slots
from hotrows.errors import BadIdError
from hotrows.ops.unique import UniqueRows, unique_rows
from hotrows.stores.memory_checks import available_host_memory, require_memory
from hotrows.table import whole_number

FAR = 2**31 - 2
LARGEST_CAPACITY = 2**31 - 1  # the number of a slot is an int32
MAX_ROW = 2**63 - 2  # the largest int64 stands for the end of the rows where they are sorted


class Simulation(NamedTuple):
    """Of the unique rows of every batch, how many were hits and misses, and how many rows were evicted for them.

    Each is int64 [number of batches].
    """

    hits: Tensor
    misses: Tensor
    evictions: Tensor

    @property
    def hit_rate(self) -> float:
        return float(self.hits.sum() / (self.hits.sum() + self.misses.sum()).clamp(min=1))


def simulate(
    batches: Iterable[Tensor],
    policy: str | Policy = "lookahead",
    capacity: int = 10_000,
    window: int = 64,
    index: str = "hash",
) -> Simulation:
    """Hits, misses and evictions of each batch of a trace.

    Args:
        batches: int64 tensors of rows, of any shape. They are read lazily, `window` batches ahead.
        policy: a name in `hotrows.POLICIES`, a `Policy`, or "belady": the fewest misses that any policy could have
            if every batch fits the cache. For "belady" the whole trace is read first.
        capacity: slots of the cache. A batch with more unique rows is counted too. For the index "set-associative" it
            must be a multiple of its 16 ways.
        window: how many batches a policy that looks ahead knows, the current one included.
        index: a name in `hotrows.INDEXES`, or "auto", which is "hash" here. The index "direct" takes 4 bytes per row.

    Example::

        hotrows.simulate(trace, "lru", capacity=10_000).hit_rate
    """
    capacity = whole_number(capacity, "capacity", least=1, most=LARGEST_CAPACITY)
    window = whole_number(window, "window", least=1, most=WINDOW_LIMIT)
    check_index(index)
    if policy == "belady":
        batches = list(batches)
        policy = Belady(batches)
    chosen = make_policy(policy)
    name = "hash" if index == "auto" else index
    rounded = INDEXES[name].round_slots(capacity)
    if rounded != capacity:
        raise ValueError(
            f"capacity is {capacity}, which a cache with the index {name!r} would round up to {rounded}: give "
            f"capacity={rounded}, or another index"
        )
    require_memory(
        f"{capacity:,} slots and their index",
        BYTES_PER_SLOT * capacity + INDEXES[name].num_bytes(0, capacity),
        available_host_memory(),
        "host memory",
        "give a smaller capacity",
    )
    slots = Slots(capacity, torch.device("cpu"))
    largest = 0
    if name == "direct":
        batches = list(batches)
        largest = max((int(batch.max()) for batch in map(_rows, batches) if batch.numel()), default=0)
        require_memory(
            f"a direct index of {largest + 1:,} rows",
            INDEXES[name].num_bytes(largest + 1, capacity),
            available_host_memory(),
            "host memory",
            "use index='hash'",
        )
    planner = EagerPlanner(slots, make_index(name, largest + 1, slots), chosen)
    counts = [_step(planner, unique, number) for number, unique in _announced(planner, batches, window)]
    table = torch.tensor(counts, dtype=torch.int64).reshape(-1, len(Counts._fields))
    column = {field: table[:, i] for i, field in enumerate(Counts._fields)}
    return Simulation(column["hits"], column["misses"], column["evictions"])


def _announced(planner: EagerPlanner, batches: Iterable[Tensor], window: int) -> Iterator[tuple[int, UniqueRows]]:
    """The batches in order, each after the batches of its window were announced."""
    announced: deque[tuple[int, UniqueRows]] = deque()
    for number, batch in enumerate(batches):
        unique = unique_rows(_rows(batch))
        planner.announce(unique, number)
        announced.append((number, unique))
        if len(announced) == window:
            yield announced.popleft()
    yield from announced


def _step(planner: EagerPlanner, unique: UniqueRows, number: int) -> Counts:
    (plan,) = planner.plan(unique, Placement.SPILL, batch_number=number)
    counts = Counts(*plan.counts.tolist())
    planner.resolve(plan, counts, Placement.SPILL)
    return counts


def _rows(batch: Tensor) -> Tensor:
    if not isinstance(batch, Tensor) or batch.dtype not in (torch.int64, torch.int32):
        given = batch.dtype if isinstance(batch, Tensor) else f"a {type(batch).__name__}"
        raise ValueError(f"a batch of the trace is {given}, give int64 tensors of rows{to_tensor(batch, 'rows')}")
    rows = batch.flatten().long()
    if rows.numel():
        low, high = (int(row) for row in rows.aminmax())
        if low < 0 or high > MAX_ROW:
            raise BadIdError(f"a batch of the trace has row {low if low < 0 else high}, rows are 0 to {MAX_ROW}")
    return rows


class Belady(Policy):
    """Evicts the row whose next use is the furthest away: the offline optimum, known from the whole trace."""

    def __init__(self, trace: Iterable[Tensor]) -> None:
        batches = [torch.unique(_rows(batch)) for batch in trace]
        rows = torch.cat([torch.empty(0, dtype=torch.int64), *batches])
        lengths = [batch.numel() for batch in batches]
        number = torch.repeat_interleave(torch.arange(len(batches)), torch.tensor(lengths, dtype=torch.int64))
        # A stable sort by row leaves the uses of each row in order of time, so the next use is the next entry.
        order = torch.argsort(rows, stable=True)
        follows = rows[order][1:] == rows[order][:-1]
        next_use = torch.full_like(rows, FAR)
        next_use[order[:-1][follows]] = number[order][1:][follows]
        self._next_use = torch.split(next_use, lengths)

    def access(self, access: Access) -> None:
        assert access.batch_number is not None
        self.slots.priority[access.slots] = -self._next_use[access.batch_number].int()
