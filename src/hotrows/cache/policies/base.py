"""The protocol of policies: keep a priority per slot; the lowest goes first.

The planner never evicts a slot that a batch in flight uses, nor a pinned one, whatever its priority.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from hotrows.cache.slots import Slots


@dataclass(frozen=True)
class Access:
    """One batch's use of the cache, after its rows were given slots.

    Slots of rows that have none, or of a plan that was not carried out, are the place beyond the last slot: write
    there freely, it is never read.
    """

    rows: Tensor  # int64 [U], distinct
    slots: Tensor  # int64 [U]
    fresh: Tensor  # bool [U], the row was not in the cache before
    occurrences: Tensor  # int32 [U], lookups of the row in the batch
    num: Tensor  # int32 [1], how many of the entries are filled
    done: Tensor  # bool [], false for a plan that was not carried out
    batch: int  # running number of the plan, ascending
    number: int | None  # the number the batch was announced under, None if it was not


class Policy(ABC):
    """Says who stays. `priority` of a slot that was never used must stay the lowest."""

    looks_ahead = False  # whether `announce` and `withdraw` are wanted
    by_parts = False  # whether victims of batches planned ahead may be looked for in a part of the slots at a time

    def check(self, num_rows: int) -> None:
        """Raise if the policy is not for a cache over this many rows."""

    def remap(self, row_of: Tensor) -> None:
        """The store has row r, numbered table after table, as row_of[r]; called before `bind`, if at all."""

    def bind(self, slots: Slots) -> None:
        """Take the cache's slots; called once."""
        self.slots = slots

    @abstractmethod
    def access(self, access: Access) -> None:
        """A batch uses rows: set the priorities of their slots."""

    def refresh(self, batch: int) -> None:
        """Called before victims are chosen."""

    def announce(self, rows: Tensor, slots: Tensor, num: Tensor, number: int) -> None:
        """A batch that comes later, in ascending number, will use these distinct rows; int64 slots as in `Access`."""

    def counted(self, number: int, num_rows: int) -> None:
        """The host has learned how many rows an announced batch has."""

    def came(self, number: int, num_erased: int) -> None:
        """An announced batch was planned for good; `num_erased` as in `Counts`."""

    def withdraw(self, rows: Tensor, slots: Tensor, num: Tensor, number: int) -> None:
        """An announced batch will not come; arguments as for `announce`."""
