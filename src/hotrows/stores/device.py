"""The store on the device itself: all rows in its memory, nothing to move."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hotrows.ops.swap import Moves
from hotrows.stores.memory_checks import available_memory, require_memory
from hotrows.stores.pinned_memory import host_bytes
from hotrows.stores.ram import fill
from hotrows.stores.record import RecordLayout
from hotrows.table import Table


class DeviceStore:
    """All rows of a group on the device."""

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

    def swap(self, cache: Tensor, moves: Moves) -> None:
        raise AssertionError("rows that are on the device do not move")

    def view(self, start: int, stop: int) -> Tensor:
        return self.records[start:stop]
