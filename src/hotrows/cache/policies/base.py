"""The protocol of policies: a policy keeps one priority per slot, and the slot of lowest priority is evicted first.

Whatever the priorities are, the planner never evicts a slot that a batch in flight uses, nor a pinned slot. So a policy
can make the cache slow, but never wrong.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from hotrows.cache.slots import Slots

if TYPE_CHECKING:
    from hotrows.cache.policies.next_use import NextUseTable


@dataclass(frozen=True)
class Access:
    """One plan's use of the cache, after its rows were given slots.

    For rows without a slot, and for all rows of a plan that is not carried out, `slots` has the index of the extra
    entry behind the last slot. A policy may write to that entry; nothing reads it.
    """

    rows: Tensor  # int64 [U], unique
    slots: Tensor  # int64 [U]
    fresh: Tensor  # bool [U], true for a row that was not in the cache before
    occurrences: Tensor  # int32 [U], lookups of the row in the batch
    num: Tensor  # int32 [1], how many of the U entries are filled
    fits: Tensor  # bool [], false for a plan that is not carried out
    plan_number: int  # plans are numbered in ascending order
    batch_number: int | None  # the number the batch was announced under, None if it was not announced


@dataclass(frozen=True)
class PolicyKernelSpec:
    """What the planning kernels need of a policy.

    From `bind` on, the tensors are never replaced, so CUDA graphs may hold their addresses; their contents change. Only
    the next-use table replaces its arrays: see `NextUseTable.generation`.
    """

    kind: Literal["lookahead", "lru", "lfu"]  # which rule for priorities the kernels apply
    coalesces: bool = False  # whether small batches are planned together by default
    next_use: "NextUseTable | None" = None  # which announced batches need a row
    seen: Tensor | None = None  # int32 [slots + 1], lookups counted while a row is in the cache
    rank_of_row: Tensor | None = None  # int32 [rows], each row's position in the order of frequency, if it was given
    # Whether priorities fit into one byte if next uses are counted from the planned batch (see `ops.select_victims`).
    one_byte: bool = False
    scans_ranges: bool = False  # as for `Policy`: victims may be chosen from a range of the slots


# Methods that the planning kernels do not call: they compute what these do for the policies that they know.
_COMPUTED_BY_KERNELS = {"access", "announce", "refresh"}


class Policy(ABC):
    """Ranks the slots for eviction. A slot that was never used must keep the lowest priority."""

    looks_ahead = False  # whether the policy wants `announce` and `withdraw`
    scans_ranges = False  # whether victims of batches planned ahead may be chosen from a range of the slots

    def __init_subclass__(cls, **options: Any) -> None:
        """Take the inherited `kernel_spec` from a subclass that overrides what the kernels would compute."""
        super().__init_subclass__(**options)
        for kind in cls.__mro__:
            if "kernel_spec" in vars(kind):
                return
            if _COMPUTED_BY_KERNELS & vars(kind).keys():
                cls.kernel_spec = Policy.kernel_spec  # type: ignore[method-assign]
                return

    def check(self, num_rows: int) -> None:
        """Raise if the policy does not suit a cache over this many rows.

        It does not if, for example, it has counts of more or fewer rows.
        """

    def remap(self, row_of: Tensor) -> None:
        """Row r, numbered table after table, has number row_of[r] in the store. Called at most once, before `bind`."""

    def set_tables(self, first_rows: Tensor) -> None:
        """The store numbers rows table after table. Called before `bind`.

        With a row order this need not be called. If the order changes the numbers, `remap` is called instead.

        Args:
            first_rows: int64 [T], the first row of each table.
        """

    def bind(self, slots: Slots) -> None:
        """Keep a reference to the cache's slots, and allocate state for them. Called once."""
        self.slots = slots

    @abstractmethod
    def access(self, access: Access) -> None:
        """A plan uses rows: set the priorities of their slots."""

    def refresh(self, plan_number: int) -> None:
        """Update priorities of any slots. Called for every training plan, before victims are chosen."""

    def announce(self, rows: Tensor, slots: Tensor, num: Tensor, batch_number: int) -> None:
        """A later batch will use these unique rows. Batches come in ascending number; `slots` are as in `Access`."""

    def withdraw(self, rows: Tensor, slots: Tensor, num: Tensor, batch_number: int) -> None:
        """An announced batch will not be planned. The arguments are those of `announce`."""

    def note_unique_count(self, batch_number: int, num_rows: int) -> None:
        """The host has read back how many unique rows an announced batch has."""

    def batch_planned(self, batch_number: int, num_erased: int) -> None:
        """The host has read back that an announced batch was planned and fits. `num_erased`: see `Counts.erasures`."""

    def forget(self, batch_number: int) -> None:
        """Announcing this batch failed: it will be neither planned nor withdrawn."""

    def note_lost_plan(self, num_rows: int) -> None:
        """Planning at most this many rows has failed, and `access` may have taken effect for some of them."""

    def kernel_spec(self) -> PolicyKernelSpec | None:
        """What the planning kernels need of this policy, after `bind`; None if they do not know its rule."""
        return None
