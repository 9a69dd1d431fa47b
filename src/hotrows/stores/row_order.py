"""The order of rows in the store: from hot to cold over all tables, instead of table after table."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hotrows.ops.remap import remap
from hotrows.ops.unique import UniqueRows
from hotrows.stores.pinned_memory import host_bytes
from hotrows.table import Table

MOST_IN_INT32 = 2**31 - 1


class RowOrder:
    """Orders rows by how often they occur (FreqCache's reordered weight), the most frequent first.

    Nothing that a user sees depends on it: tables, ids, first values and results stay as they are. Rows that occur
    equally often stay in the order of their tables and ids.

    Args:
        counts: how often each id of each table occurs, [num_rows] by table.
    """

    def __init__(self, counts: Mapping[str, Tensor]) -> None:
        for name, times in counts.items():
            if times.dim() != 1 or times.is_floating_point():
                raise ValueError(
                    f"counts of table {name!r} are {times.dtype} {list(times.shape)}, give int64 [num_rows]"
                )
        self._sizes = {name: times.numel() for name, times in counts.items()}
        self._place = _places(
            torch.cat([torch.empty(0, dtype=torch.int64), *(t.cpu().long() for t in counts.values())])
        )

    def numbering(self, tables: Sequence[Table], device: torch.device) -> "Numbering | None":
        """The rows of these tables in this order; None where that is how they are numbered anyway."""
        for table in tables:
            if self._sizes.get(table.name) != table.num_rows:
                given = self._sizes.get(table.name, "none")
                raise ValueError(
                    f"row_order has counts of {given} rows of table {table.name!r}, it has {table.num_rows}"
                )
        place = dict(zip(self._sizes, torch.split(self._place, list(self._sizes.values())), strict=True))
        chosen = torch.cat([place[table.name] for table in tables])
        if [table.name for table in tables] != list(self._sizes):
            chosen = _places(-chosen)
        if bool((chosen[1:] > chosen[:-1]).all()):
            return None
        return Numbering(chosen, device)


class Numbering:
    """From (first row of a table + id) to the row in the store (FreqCache's idx_map).

    The map stays on the host, where a kernel reads it: no device memory grows with the tables.
    """

    def __init__(self, row_of: Tensor, device: torch.device) -> None:
        self.row_of = row_of  # int32 or int64 [R]
        if device.type == "cuda":
            mapped = host_bytes(self, row_of.numel() * row_of.element_size(), device)
            self.row_of = mapped.view(row_of.dtype).copy_(row_of)

    def of_distinct(self, unique: UniqueRows) -> UniqueRows:
        """The same lookups, each distinct row by its number in the store; no longer ascending.

        They were sorted by table and id, and stay so: in which order gradients are added up, and with it every bit of
        the result, does not depend on the order of rows.
        """
        return unique._replace(rows=remap(unique.rows, unique.num, self.row_of))

    def hottest(self, num: int) -> Tensor:
        """The rows, numbered table after table, that are among the first `num` in the store."""
        return torch.nonzero(self.row_of < num, as_tuple=True)[0]


def _places(counts: Tensor) -> Tensor:
    """Each entry's place in the order of falling counts."""
    # NumPy's, as it makes use of tables whose ids come by falling frequency
    order = torch.from_numpy(np.argsort(-counts.numpy(), kind="stable"))
    place = torch.empty_like(counts, dtype=torch.int32 if counts.numel() <= MOST_IN_INT32 else torch.int64)
    place[order] = torch.arange(counts.numel(), dtype=place.dtype)
    return place
