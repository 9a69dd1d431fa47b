"""The planner protocol: what a planner takes, the plans it makes, and what the planning kernels need of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from torch import Tensor

from hotrows.cache.indexes.base import IndexKernelSpec
from hotrows.cache.planning.victim_scan import ScanRange
from hotrows.cache.policies.base import PolicyKernelSpec
from hotrows.cache.slots import Slots
from hotrows.ops.unique import UniqueRows


class Placement(Enum):
    """What to do with rows that are not in the cache."""

    ATOMIC = "atomic"  # give each of them a slot, or change nothing; for batches planned ahead
    SPILL = "spill"  # rows that find no slot go to the overflow buffer; for a batch planned when it trains
    READ_ONLY = "read only"  # all of them go to the overflow buffer and the cache does not change; for reads


class Counts(NamedTuple):
    """What the host reads back of a plan, some time after the plan was made.

    Of coalesced batches, the first plan has misses, placed, evictions, overflow and erasures of all of them and the
    other plans have none. The `hits` of a plan are its unique rows minus its misses. So the hits of the first plan can
    be negative, but the sums over all plans are right.
    """

    lookups: int  # lookups that have a row
    unique: int  # unique rows of the batch
    hits: int  # unique rows found in the cache
    misses: int
    placed: int  # misses that were given a slot
    evictions: int
    overflow: int  # misses that were given a position in the overflow buffer
    fits: int  # 0 if an ATOMIC plan changed nothing because there were too few slots
    erasures: int  # upper bound on the cells of the next-use table that the plan has marked as erased


@dataclass(slots=True)
class Plan:
    """A slot for every lookup of a batch, and the moves that bring the rows into these slots.

    U is the length of `unique.rows`. A slot number of `num_slots` or more is a position in the overflow buffer, which
    lies behind the last slot.
    """

    plan_number: int  # plans are numbered in the order they are made
    batch_number: int | None  # the number the batch was announced under, None if it was not announced
    index_generation: int  # how often the index had been rebuilt
    max_moves: int  # upper bound on the moves, which the host can know without a readback
    scanned_all: bool  # whether victims were chosen among all slots
    unique: UniqueRows
    slots: Tensor  # int32 [N], NO_SLOT where a lookup has no row
    row_slots: Tensor  # int32 [U], the slot of each unique row
    move_slots: Tensor  # int32 [M], the slot of each move
    move_out: Tensor  # int64 [M], the row that leaves the slot, NO_ROW for none
    move_in: Tensor  # int64 [M], the row that enters the slot, NO_ROW for none
    num_moves: Tensor  # int32 [1]
    overflow_slots: Tensor  # int32 [M], the positions in the overflow buffer
    overflow_rows: Tensor  # int64 [M], the rows in these positions
    num_overflow: Tensor  # int32 [1]
    counts: Tensor  # int32, the fields of Counts
    is_moved: bool = False  # the moves were carried out, and must not be again


@dataclass(frozen=True)
class Part:
    """One of several coalesced batches, which are planned as one batch: the union of their unique rows."""

    unique: UniqueRows
    in_union: Tensor  # int32 [U], the position of each unique row in the union; undefined from `unique.num` on


@dataclass(frozen=True)
class CacheKernelSpec:
    """What the kernels that place rows in slots read and write."""

    slots: Slots
    index: IndexKernelSpec
    policy: PolicyKernelSpec


@dataclass(frozen=True)
class KernelSpec:
    """What the planning kernels need of a planner.

    The tensors are never replaced, so CUDA graphs may hold their addresses; their contents change. Only the next-use
    table replaces its arrays (see `PolicyKernelSpec`).
    """

    cache: CacheKernelSpec | None  # None if all rows are on the device (slot i holds row i), so that no row is placed


class Planner(Protocol):
    """Plans batches one after the other. It is the only writer of the index and of the slots."""

    num_slots: int
    plan_number: int  # number of the last plan
    holds_all_rows: bool  # all rows are always on the device: slot i holds row i, and nothing ever moves
    any_slot: bool  # a row may take any slot, so rows overflow only when all slots are pinned or in flight

    @property
    def row_of_slot(self) -> Tensor | None:
        """The row in each slot, int64 [num_slots], NO_ROW for none; None if the planner holds all rows."""

    @property
    def pinned(self) -> Tensor | None:
        """Whether each slot is pinned, bool [num_slots]; None if the planner holds all rows."""

    @property
    def index_generation(self) -> int:
        """How often the index was rebuilt."""

    def device_bytes(self, num_rows: int) -> int:
        """Device memory of the slots and of the index over `num_rows` rows."""

    def announce(self, unique: UniqueRows, batch_number: int) -> None:
        """A batch with these rows will be planned later. Batches are announced in ascending number."""

    def withdraw(self, unique: UniqueRows, batch_number: int) -> None:
        """An announced batch will not be planned."""

    def note_unique_count(self, batch_number: int, num_rows: int) -> None:
        """The host has read back how many unique rows an announced batch has."""

    def plan(
        self,
        unique: UniqueRows,
        placement: Placement,
        oldest: int | None = None,
        batch_number: int | None = None,
        scan_all: bool = True,
        parts: Sequence[Part] | None = None,
    ) -> list[Plan]:
        """Plan one batch, or several coalesced batches as one.

        Args:
            unique: the unique rows of the batch, or the union of those of the coalesced batches (see `union_of`).
            oldest: the number of the first plan in flight; None if no plan is in flight. Only slots last used before
                plan `oldest` are evicted.
            batch_number: the number these rows were announced under; None if they were not.
            scan_all: choose victims among all slots. Otherwise they may be chosen from one range of the slots, if
                policy and index permit.
            parts: the coalesced batches; None for one batch.

        Returns:
            One plan for each part, with consecutive numbers, or one plan without `parts`. Every slot that one of these
            plans uses counts as last used by the last of them. The first plan carries the moves and the overflow of
            all.
        """

    @property
    def unconfirmed_moves(self) -> Tensor | None:
        """`Plan.move_slots` of the last plan that places rows, until it is confirmed; None if there is none.

        If a caller may fail after a plan is made and before its moves are queued, it checks later whether one of its
        tickets has this plan. It then confirms the plan or rolls it back. Other callers need not confirm anything.
        """

    def confirm(self) -> None:
        """The moves of the last plan will be carried out, whatever fails."""

    def roll_back(self) -> None:
        """Take the last plan back, if it is not confirmed: its moves will not be carried out."""

    def begin_plans(self, num_plans: int, num_rows: int, scan_all: bool) -> ScanRange:
        """Take the next plan numbers for plans that kernels will make, and get the index ready for them.

        Args:
            num_rows: upper bound on the unique rows of all these plans together.

        Returns:
            The slots to scan for victims, which are none if the planner holds all rows.
        """

    def resolve(self, plan: Plan, counts: Counts, placement: Placement) -> None:
        """The host has read back a plan's counts."""

    def kernel_spec(self) -> KernelSpec | None:
        """What the planning kernels need; None if the policy or the index has no kernels."""

    def reason_without_kernels(self) -> str | None:
        """A sentence that says why there are no kernels; None if there are."""

    def clear(self) -> None:
        """Forget which rows are in the slots, because the memory of the cache was given up."""
