"""A tier: a cache in host memory in front of a slower store, which is itself a store.

Tiers compose. The cache of the modules on the device is in front of a `CachedStore`, which may be in front of another
one, and so on down to the store where all rows live.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.cache.indexes import INDEXES, check_index, choose_index, make_index
from hotrows.cache.planning.planner import EagerPlanner
from hotrows.cache.planning.protocol import Counts, Placement, Plan
from hotrows.cache.policies import Policy, make_policy
from hotrows.cache.slots import Slots
from hotrows.cache.stats import Stats
from hotrows.ops.swap import Moves
from hotrows.ops.unique import unique_rows
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.stores import RecordLayout, Store, StoreSettings, choose_store, exchange_by_number, needs_cache
from hotrows.stores import in_host_memory as is_in_host_memory
from hotrows.stores.memory_checks import available_host_memory, require_memory
from hotrows.stores.pinned_memory import host_bytes
from hotrows.stores.row_order import Numbering
from hotrows.table import Table

CPU = torch.device("cpu")
CHUNK_BYTES = 1 << 26  # of records that a flush writes at a time


@dataclass(frozen=True)
class Cached:
    """Put a tier in host memory in front of another store: `store=Cached(MyStore(), num_slots=1_000_000)`.

    Args:
        backing: the slower store, as the argument `store=` of the embedding modules takes it, except "device".
        num_slots: how many rows are kept in host memory for each dim; tables of different dims have separate tiers.
        policy: decides which rows stay in host memory, a name in `hotrows.POLICIES` or a `Policy`.
        index: "auto", "direct", "hash" or "set-associative".
    """

    backing: str | StoreSettings
    num_slots: int
    policy: str | Policy = "lru"
    index: str = "hash"

    @property
    def in_host_memory(self) -> bool:
        return is_in_host_memory(choose_store(self.backing))

    def open(
        self,
        tables: Sequence[Table],
        layout: RecordLayout,
        device: torch.device,
        seed: int,
        numbering: Numbering | None = None,
    ) -> "CachedStore":
        settings = choose_store(self.backing)
        if not needs_cache(settings):
            raise ValueError(f"backing is {self.backing!r}: all its rows are on the device, and need no tier in front")
        policy = make_policy(self.policy)
        sizes = torch.tensor([table.num_rows for table in tables], device="cpu")
        policy.check(int(sizes.sum()))
        if numbering is None:
            policy.set_tables(sizes.cumsum(0) - sizes)
        else:
            policy.remap(numbering.row_of)
        return CachedStore(settings.open(tables, layout, CPU, seed, numbering), self.num_slots, policy, self.index)


class CachedStore:
    """All rows of a slower store, with the records of some of them in host memory.

    Rows are brought into host memory by `read` and `write`. A row that gets no slot is read from and written to the
    slower store directly. Reading and writing a range does not change which rows are in host memory.

    Args:
        backing: the slower store.
        num_slots: rows in host memory.
        policy, index: as for `Cached`.
    """

    waits = True

    def __init__(self, backing: Store, num_slots: int, policy: str | Policy = "lru", index: str = "hash") -> None:
        if not isinstance(num_slots, int) or num_slots < 1:
            raise ValueError(f"num_slots is {num_slots!r}, it must be a whole number from 1 up")
        check_index(index)
        self.layout = backing.layout
        self.num_rows = backing.num_rows
        self.backing = backing
        self.stats = Stats()
        name = choose_index(index, self.num_rows, num_slots)
        slots = Slots(INDEXES[name].round_slots(min(num_slots, self.num_rows)), CPU)
        num_bytes = slots.num * self.layout.num_bytes
        require_memory(
            f"a tier of {slots.num:,} rows", num_bytes, available_host_memory(), "host memory", "make it smaller"
        )
        chosen = make_policy(policy)
        chosen.check(self.num_rows)
        self.planner = EagerPlanner(slots, make_index(name, self.num_rows, slots), chosen)
        memory = host_bytes(self, num_bytes, CPU)
        self.records = memory.view(self.layout.dtype).view(slots.num, self.layout.words)
        self._changed = torch.zeros(slots.num, dtype=torch.bool, device=CPU)  # not yet written to the slower store
        self._lock = threading.RLock()
        self._error: BaseException | None = None

    def exchange(self, records: Tensor, moves: Moves) -> None:
        exchange_by_number(self, records, moves)

    def read(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        num_slots = self.planner.num_slots
        with self._operation(plans=True):
            plan = self._plan(rows)
            self._evict(plan)
            self._fetch(plan)
            slots = plan.slots.long()
            found = torch.index_select(self.records, 0, slots.clamp(max=num_slots - 1), out=out)
            overflows = slots >= num_slots
            if bool(overflows.any()):
                found[overflows] = self.backing.read(rows[overflows])
            return found

    def write(self, rows: Tensor, records: Tensor) -> None:
        assert records.shape == (rows.numel(), self.layout.words)
        with self._operation(plans=True):
            plan = self._plan(rows)
            self._evict(plan)
            overflows = plan.slots >= self.planner.num_slots
            slots = plan.slots[~overflows].long()
            self.records[slots] = records[~overflows]
            self._changed[slots] = True
            if bool(overflows.any()):
                self.backing.write(rows[overflows], records[overflows])

    def read_range(self, start: int, stop: int) -> Tensor:
        with self._operation():
            found = self.backing.read_range(start, stop)
            slots, rows = self._cached_in(start, stop)
            found[rows - start] = self.records[slots]
            return found

    def write_range(self, start: int, records: Tensor) -> None:
        with self._operation():
            self.backing.write_range(start, records)
            slots, rows = self._cached_in(start, start + records.shape[0])
            self.records[slots] = records[rows - start]
            self._changed[slots] = False

    def flush(self) -> None:
        """Write every changed row to the slower store, in the order of the rows, and flush that store."""
        with self._operation():
            slots = torch.nonzero(self._changed).squeeze(1)
            rows, order = torch.sort(self.planner.row_of_slot[slots])
            slots = slots[order]
            step = max(1, CHUNK_BYTES // self.layout.num_bytes)
            for start in range(0, rows.numel(), step):
                part = slots[start : start + step]
                self.backing.write(rows[start : start + step], self.records[part])
                self._changed[part] = False
                self.stats.bytes_out += part.numel() * self.layout.num_bytes
            self.backing.flush()

    @contextmanager
    def _operation(self, plans: bool = False) -> Iterator[None]:
        """One operation at a time. An interrupt that arrives during the operation is delivered after it.

        If the slower store fails after rows were given slots, the index names slots whose records have not arrived. So
        every later operation raises, because it would return other rows' records.
        """
        with self._lock, defer_sigint():
            if self._error is not None:
                raise RuntimeError(
                    f"this tier is lost because the store behind it failed ({self._error}): load the rows from a "
                    f"checkpoint into new bags"
                ) from self._error
            try:
                yield
            except BaseException as error:
                if plans:
                    self._error = error
                raise

    def _plan(self, rows: Tensor) -> Plan:
        """Give the rows slots in host memory, as far as there are any, and count what happened."""
        (plan,) = self.planner.plan(unique_rows(rows), Placement.SPILL)
        counts = Counts(*plan.counts.tolist())
        self.planner.resolve(plan, counts, Placement.SPILL)
        stats = self.stats
        stats.batches += 1
        stats.lookups += counts.lookups
        stats.unique += counts.unique
        stats.hits += counts.hits
        stats.misses += counts.misses
        stats.evictions += counts.evictions
        stats.overflow += counts.overflow
        return plan

    def _evict(self, plan: Plan) -> None:
        """Write the changed rows that leave their slots to the slower store."""
        placed = plan.move_slots >= 0
        slots, rows = plan.move_slots[placed].long(), plan.move_out[placed]
        changed = self._changed[slots]
        if bool(changed.any()):
            self.backing.write(rows[changed], self.records[slots[changed]])
            self.stats.bytes_out += int(changed.sum()) * self.layout.num_bytes
        self._changed[slots] = False

    def _fetch(self, plan: Plan) -> None:
        """Read the rows that got slots from the slower store."""
        arriving = plan.move_in >= 0
        rows = plan.move_in[arriving]
        if rows.numel():
            self.records[plan.move_slots[arriving].long()] = self.backing.read(rows)
            self.stats.bytes_in += rows.numel() * self.layout.num_bytes

    def _cached_in(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Slots of the rows start … stop - 1 that are in host memory, and those rows."""
        row_of_slot = self.planner.row_of_slot
        slots = torch.nonzero((row_of_slot >= start) & (row_of_slot < stop)).squeeze(1)
        return slots, row_of_slot[slots]
