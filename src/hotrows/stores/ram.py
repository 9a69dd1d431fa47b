"""The store in host memory: one private mapping, huge pages advised, registered where there is a CUDA device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hotrows.ops.swap import Moves, swap
from hotrows.stores.init import first_values, table_key
from hotrows.stores.memory_checks import available_host_memory, require_memory
from hotrows.stores.pinned_memory import host_bytes
from hotrows.stores.record import RecordLayout
from hotrows.stores.row_order import Numbering
from hotrows.table import Table

FILL_BYTES = 1 << 26  # records are filled this many bytes at a time


class RamStore:
    """All rows of a group in host memory.

    Args:
        tables: the tables of the group, whose rows lie one after the other, or as `numbering` says.
        device: where the cache will be; with CUDA the mapping is registered, so that a kernel reaches it.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        layout: RecordLayout,
        device: torch.device,
        seed: int,
        numbering: Numbering | None = None,
    ) -> None:
        self.layout = layout
        self.num_rows = sum(table.num_rows for table in tables)
        num_bytes = self.num_rows * layout.num_bytes
        require_memory(
            f"{self.num_rows:,} rows of {layout.num_bytes} bytes",
            num_bytes,
            available_host_memory(),
            "host memory",
            "use fewer rows, a smaller dim or an optimizer with less state",
        )
        self.records = host_bytes(self, num_bytes, device).view(layout.dtype).view(self.num_rows, layout.words)
        fill(self.records, tables, layout, device, seed, None if numbering is None else numbering.row_of)

    def swap(self, cache: Tensor, moves: Moves) -> None:
        swap(cache, self.records, moves)

    def view(self, start: int, stop: int) -> Tensor:
        return self.records[start:stop]


def fill(
    records: Tensor,
    tables: Sequence[Table],
    layout: RecordLayout,
    device: torch.device,
    seed: int,
    row_of: Tensor | None = None,
) -> None:
    """Write the first values of all rows, made on `device`; with a map, to the rows it says."""
    step = max(1, FILL_BYTES // layout.num_bytes)
    if device.type == "cpu" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        device = torch.device("cuda")  # makes the same values, many times as fast
    # a copy from the device to memory that is not pinned takes several times as long
    scattered = device.type == "cuda" and row_of is not None
    staged = torch.empty(step, layout.words, dtype=layout.dtype, pin_memory=True) if scattered else None
    first_row = 0
    for table in tables:
        key = table_key(seed, table.name)
        for start in range(0, table.num_rows, step):
            stop = min(start + step, table.num_rows)
            ids = torch.arange(start, stop, device=device)
            chunk = torch.zeros(stop - start, layout.words, dtype=layout.dtype, device=device)
            chunk[:, : layout.dim] = first_values(table.init, ids, layout.dim, table.num_rows, key)
            for part in layout.state:
                chunk[:, layout.columns(part.name)] = part.first_value
            place = slice(first_row + start, first_row + stop)
            if row_of is None:
                records[place].copy_(chunk)
            else:
                records[row_of[place].long()] = chunk if staged is None else staged[: stop - start].copy_(chunk)
        first_row += table.num_rows
