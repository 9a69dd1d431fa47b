"""The order of rows in the store: from hot to cold over all tables, instead of table after table."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hotrows.ops.remap import remap
from hotrows.ops.unique import UniqueRows
from hotrows.stores.pinned_memory import host_bytes
from hotrows.table import Table

MAX_INT32 = 2**31 - 1


class RowOrder:
    """Orders rows by how often they occur, the most frequent first (FreqCache's reordered weight).

    Nothing that a user sees depends on it: tables, ids, initial values and results are the same. Rows that occur
    equally often keep the order of their tables and ids.

    Args:
        counts: how often each id occurs, [num_rows] for each table by name.
    """

    def __init__(self, counts: Mapping[str, Tensor]) -> None:
        for name, times in counts.items():
            if times.dim() != 1 or times.is_floating_point():
                raise ValueError(
                    f"counts of table {name!r} are {times.dtype} {list(times.shape)}, give int64 [num_rows]"
                )
        self._sizes = {name: times.numel() for name, times in counts.items()}
        self._rank = _ranks(torch.cat([torch.empty(0, dtype=torch.int64), *(t.cpu().long() for t in counts.values())]))

    def numbering(self, tables: Sequence[Table], device: torch.device) -> "Numbering | None":
        """The numbers of these tables' rows in this order; None if they are table after table in this order too."""
        for table in tables:
            if self._sizes.get(table.name) != table.num_rows:
                given = self._sizes.get(table.name, "none")
                raise ValueError(
                    f"row_order has counts of {given} rows of table {table.name!r}, it has {table.num_rows}"
                )
        rank_of = dict(zip(self._sizes, torch.split(self._rank, list(self._sizes.values())), strict=True))
        chosen = torch.cat([rank_of[table.name] for table in tables])
        if [table.name for table in tables] != list(self._sizes):
            chosen = _ranks(-chosen)
        if bool((chosen[1:] > chosen[:-1]).all()):
            return None
        return Numbering(chosen, device)


class Numbering:
    """Maps a row's number table after table (first row of the table + id) to its row in the store.

    This is FreqCache's idx_map. It is in host memory, which kernels can read, so that no device memory grows with the
    tables.
    """

    def __init__(self, row_of: Tensor, device: torch.device) -> None:
        self.row_of = row_of  # int32 or int64 [R]
        if device.type == "cuda":
            mapped = host_bytes(self, row_of.numel() * row_of.element_size(), device)
            self.row_of = mapped.view(row_of.dtype).copy_(row_of)

    def of_unique(self, unique: UniqueRows) -> UniqueRows:
        """The same lookups with the unique rows numbered as in the store, in which they do not ascend any more.

        They stay sorted by table and id. So gradients are summed in the same order whatever the order of rows is, and
        every bit of the result is the same.
        """
        return unique._replace(rows=remap(unique.rows, unique.num, self.row_of))

    def hottest(self, num: int) -> Tensor:
        """The first `num` rows of the store, numbered table after table."""
        return torch.nonzero(self.row_of < num, as_tuple=True)[0]


def _ranks(counts: Tensor) -> Tensor:
    """The rank of each entry in the order of descending counts."""
    # NumPy's stable sort is fast on runs that are sorted already: tables whose ids descend in frequency.
    order = torch.from_numpy(np.argsort(-counts.numpy(), kind="stable"))
    rank = torch.empty_like(counts, dtype=torch.int32 if counts.numel() <= MAX_INT32 else torch.int64)
    rank[order] = torch.arange(counts.numel(), dtype=rank.dtype)
    return rank
