"""Static frequency: evict the row whose frequency in the data, known before training, is lowest (FreqCache's rule)."""

from torch import Tensor

from hotrows.cache.policies.base import Access, Policy
from hotrows.cache.policies.ranking import Ranking
from hotrows.cache.slots import Slots


class Frequency(Policy):
    """Evicts the row whose frequency in the data, known before training, is lowest.

    Args:
        counts: how often each row occurs, [R]. Without counts, rows are taken to be numbered by falling frequency
            within their tables.
    """

    def __init__(self, counts: Tensor | None = None) -> None:
        self.ranking = Ranking(counts)

    def check(self, num_rows: int) -> None:
        self.ranking.check(num_rows)

    def remap(self, row_of: Tensor) -> None:
        self.ranking.remap(row_of)

    def set_tables(self, first_rows: Tensor) -> None:
        self.ranking.set_tables(first_rows)

    def bind(self, slots: Slots) -> None:
        super().bind(slots)
        self.ranking.move_to(slots.device)

    def access(self, access: Access) -> None:
        self.slots.priority[access.slots] = self.ranking.of(access.rows)
