"""A store behind a cache: all rows of the tables of one embedding dimension, and some records in device memory.

A row's current value is in its slot if the index knows the row, and in the store otherwise (rule 5 of the exactness
argument). `RowCache` owns memory and knows nothing of time: `loop.scheduler` decides when plans and moves run.
"""

import torch
from torch import Tensor

from hotrows.cache.planning.protocol import Counts, Placement, Plan, Planner
from hotrows.cache.stats import Stats
from hotrows.cache.transfer import Transfer, ZeroCopy
from hotrows.ops.rows import NO_ROW
from hotrows.ops.swap import Moves
from hotrows.ops.unique import UniqueRows, unique_rows
from hotrows.stores import Store
from hotrows.stores.row_order import Numbering


class RowCache:
    """All rows of the tables of one embedding dimension in a store, and the records of some of them on the device.

    Args:
        store: all rows.
        planner: gives rows their slots. The cache has `planner.num_slots` slots.
        transfer: moves records between store and device. Each cache needs its own.
        numbering: maps a row's number (table after table) to its number in the store; None if the two are the same.
    """

    def __init__(
        self,
        store: Store,
        planner: Planner,
        device: torch.device,
        transfer: Transfer | None = None,
        numbering: Numbering | None = None,
    ) -> None:
        self.store = store
        self.planner = planner
        self.device = device
        self.transfer = ZeroCopy() if transfer is None else transfer
        self.numbering = numbering
        self.stats = Stats()
        self.num_slots = planner.num_slots
        self.dim = store.layout.dim
        self.record_bytes = store.layout.num_bytes
        self.num_pinned = 0
        self.lost: str | None = None  # why there is no cache any more
        self.records = self._allocate()  # float32 [num_slots + overflow, words]

    def _allocate(self) -> Tensor:
        if self.holds_all_rows:
            records: Tensor = self.store.records  # type: ignore[attr-defined]  # the device store's own memory
            return records
        layout = self.store.layout
        return torch.zeros(self.num_slots, layout.words, dtype=layout.dtype, device=self.device)

    @property
    def holds_all_rows(self) -> bool:
        """True if all rows of the store are always on the device, where slot i holds row i."""
        return self.planner.holds_all_rows

    @property
    def device_bytes(self) -> int:
        """Device memory of the records, slots, index and transfer. Memory of single batches is not counted."""
        return self.records.nbytes + self.planner.device_bytes(self.store.num_rows) + self.transfer.device_bytes

    def find_unique(self, rows: Tensor) -> tuple[UniqueRows, Tensor | None]:
        """Find the unique rows of a batch, and give them their numbers in the store.

        Args:
            rows: int64 [N], numbered table after table.

        Returns:
            The unique rows, numbered as in the store; and the same rows numbered table after table, or None if the
            store numbers them so.
        """
        unique = unique_rows(rows)
        if self.numbering is None:
            return unique, None
        return self.numbering.of_unique(unique), unique.rows

    def move(self, moves: Moves) -> None:
        """Carry out moves in the current stream."""
        self.transfer.move(self.store, self.records, moves)

    def move_planned(self, plan: Plan) -> None:
        """Carry out the moves of a plan, once."""
        if not plan.is_moved:
            self.move(Moves(plan.move_slots, plan.move_out, plan.move_in, plan.num_moves))
            plan.is_moved = True

    def read_overflow(self, plan: Plan) -> None:
        """Copy those rows of a plan that got no slot to the overflow buffer."""
        nothing = torch.full_like(plan.overflow_rows, NO_ROW)
        self.move(Moves(plan.overflow_slots, nothing, plan.overflow_rows, plan.num_overflow))

    def write_overflow(self, plan: Plan) -> None:
        """Write the overflow copies of a plan back to the store."""
        nothing = torch.full_like(plan.overflow_rows, NO_ROW)
        self.move(Moves(plan.overflow_slots, plan.overflow_rows, nothing, plan.num_overflow))

    def cached_rows(self) -> Tensor:
        """The rows of the store that have a slot, int64 on the host. The caller waits for the moves first."""
        assert self.planner.row_of_slot is not None
        rows = self.planner.row_of_slot.cpu()
        return rows[rows >= 0]

    def check(self) -> None:
        """Raise if the cache is lost."""
        if self.lost is not None:
            raise MemoryError(self.lost)

    def lose(self) -> None:
        """Give the cache up, because it could not be restored after its memory was freed. Every row is in the store."""
        self.lost = (
            f"the cache of {self.num_slots:,} rows was freed to enlarge its overflow buffer, and could not be "
            "allocated and filled again. The store has the trained values of all rows: save them, and load them into "
            "bags with a smaller cache"
        )
        self.planner.clear()

    def count_plan(self, counts: Counts, placement: Placement, counts_rejection: bool) -> None:
        """Add the counts of a plan to the statistics.

        Args:
            counts_rejection: if the plan does not fit, count it as rejected. False for a plan that searched only a
                range of the slots, and for all but the first of coalesced batches.
        """
        stats = self.stats
        stats.bytes_in += (counts.placed + counts.overflow) * self.record_bytes
        stats.bytes_out += counts.evictions * self.record_bytes
        if placement is Placement.READ_ONLY:
            stats.read_rows += counts.unique
        elif counts.fits:
            stats.batches += 1
            stats.lookups += counts.lookups
            stats.unique += counts.unique
            stats.hits += counts.hits
            stats.misses += counts.misses
            stats.evictions += counts.evictions
            stats.overflow += counts.overflow
        else:
            stats.rejected_plans += counts_rejection

    def uncount_batch(self, counts: Counts) -> None:
        """Uncount a batch that was planned ahead and never trained. Its moves stay counted, because they happened."""
        stats = self.stats
        stats.batches -= 1
        stats.lookups -= counts.lookups
        stats.unique -= counts.unique
        stats.hits -= counts.hits
        stats.misses -= counts.misses
