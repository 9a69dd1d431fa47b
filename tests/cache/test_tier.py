"""What a tier tells its policy about the tables."""

import pytest
import torch

from hotrows import RowOrder, Table
from hotrows.cache.policies.frequency import Frequency
from hotrows.cache.tier import Cached
from hotrows.stores import RecordLayout

TABLES = [Table("a", 100), Table("b", 100)]
LAYOUT = RecordLayout.packed(4, ())
CPU = torch.device("cpu")


def test_without_counts_ids_are_ranks_within_their_tables() -> None:
    tier = Cached("ram", 2, policy="frequency").open(TABLES, LAYOUT, CPU, 0)
    for row in (99, 100, 0):
        tier.read(torch.tensor([row]))
    assert set(tier.planner.row_of_slot.tolist()) == {0, 100}, "id 0 of both tables stays"


def test_counts_of_the_wrong_length_are_refused_also_with_a_row_order() -> None:
    numbering = RowOrder({"a": torch.arange(100), "b": torch.arange(100)}).numbering(TABLES, CPU)
    for each in (None, numbering):
        with pytest.raises(ValueError, match="counts are given for 20 rows, but 200 rows share the cache"):
            Cached("ram", 50, policy=Frequency(torch.arange(20))).open(TABLES, LAYOUT, CPU, 0, each)
