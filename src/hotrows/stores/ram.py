"""The store in host memory: one private mapping, huge pages advised, registered where there is a CUDA device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hotrows.ops.swap import Moves, swap
from hotrows.stores.init import FILL_BYTES, initial_records
from hotrows.stores.memory_checks import available_host_memory, require_memory
from hotrows.stores.pinned_memory import host_bytes
from hotrows.stores.record import RecordLayout
from hotrows.stores.row_order import Numbering
from hotrows.table import Table


@dataclass(frozen=True)
class Ram:
    """Keep all rows in host memory, behind a cache on the device: `store=hotrows.stores.Ram()`, the default."""

    in_host_memory: ClassVar[bool] = True

    def open(
        self,
        tables: Sequence[Table],
        layout: RecordLayout,
        device: torch.device,
        seed: int,
        numbering: Numbering | None = None,
    ) -> "RamStore":
        return RamStore(tables, layout, device, seed, numbering)


class RamStore:
    """All rows of the tables of one dim in host memory, as the tensor `records`.

    Args:
        tables: their rows follow each other, or lie as `numbering` says.
        device: where the cache will be. For CUDA the mapping is registered, so that a kernel can address it.
    """

    waits = False

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
        fill(self.records, tables, layout, device, seed, numbering)

    def exchange(self, records: Tensor, moves: Moves) -> None:
        swap(records, self.records, moves)

    def read(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.index_select(self.records, 0, rows, out=out)

    def write(self, rows: Tensor, records: Tensor) -> None:
        self.records[rows] = records

    def read_range(self, start: int, stop: int) -> Tensor:
        return self.records[start:stop].clone()

    def write_range(self, start: int, records: Tensor) -> None:
        self.records[start : start + records.shape[0]].copy_(records)

    def flush(self) -> None:
        pass


def fill(
    records: Tensor,
    tables: Sequence[Table],
    layout: RecordLayout,
    device: torch.device,
    seed: int,
    numbering: Numbering | None = None,
) -> None:
    """Write the initial values of all rows."""
    if device.type == "cpu" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        device = torch.device("cuda")  # The GPU makes the same values many times as fast.
    staged: Tensor | None = None
    if device.type == "cuda" and numbering is not None:
        # A copy from the device to memory that is not pinned would take several times as long.
        most = max(1, FILL_BYTES // layout.num_bytes)
        staged = torch.empty(most, layout.words, dtype=layout.dtype, pin_memory=True)
    for rows, made in initial_records(tables, layout, device, seed, numbering):
        if isinstance(rows, slice):
            records[rows].copy_(made)
        else:
            records[rows] = made if staged is None else staged[: made.shape[0]].copy_(made)
