"""The store on the device itself: all rows are in its memory, and no cache is needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hotrows.ops.swap import Moves, swap
from hotrows.stores.memory_checks import available_memory, require_memory
from hotrows.stores.pinned_memory import host_bytes
from hotrows.stores.ram import fill
from hotrows.stores.record import RecordLayout
from hotrows.stores.row_order import Numbering
from hotrows.table import Table


@dataclass(frozen=True)
class Device:
    """Keep all rows in the memory of the device, without a cache: `store=hotrows.stores.Device()`."""

    needs_cache: ClassVar[bool] = False

    def open(
        self,
        tables: Sequence[Table],
        layout: RecordLayout,
        device: torch.device,
        seed: int,
        numbering: Numbering | None = None,
    ) -> "DeviceStore":
        assert numbering is None, "the slot of a row on the device is its number, table after table"
        return DeviceStore(tables, layout, device, seed)


class DeviceStore:
    """All rows of the tables of one dim on the device, as the tensor `records`."""

    waits = False

    def __init__(self, tables: Sequence[Table], layout: RecordLayout, device: torch.device, seed: int) -> None:
        self.layout = layout
        self.num_rows = sum(table.num_rows for table in tables)
        num_bytes = self.num_rows * layout.num_bytes
        require_memory(
            f"{self.num_rows:,} rows of {layout.num_bytes} bytes",
            num_bytes,
            available_memory(device),
            f"memory on {device}",
            "keep them in host memory (store='ram') behind a cache",
        )
        if device.type == "cpu":
            memory = host_bytes(self, num_bytes, device)
        else:
            memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self.records = memory.view(layout.dtype).view(self.num_rows, layout.words)
        fill(self.records, tables, layout, device, seed)

    def exchange(self, records: Tensor, moves: Moves) -> None:
        swap(records, self.records, moves)

    def read(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        found = self.records[rows.to(self.records.device)]
        return found.cpu() if out is None else out.copy_(found)

    def write(self, rows: Tensor, records: Tensor) -> None:
        self.records[rows.to(self.records.device)] = records.to(self.records.device)

    def read_range(self, start: int, stop: int) -> Tensor:
        return self.records[start:stop].to("cpu", copy=True)

    def write_range(self, start: int, records: Tensor) -> None:
        self.records[start : start + records.shape[0]].copy_(records)

    def flush(self) -> None:
        pass
