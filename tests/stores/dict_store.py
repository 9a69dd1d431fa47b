"""A store that is no tensor: a dict of records, as slow as they come, with nothing but the protocol."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.ops.swap import Moves
from hotrows.stores import RecordLayout, Store, exchange_by_number, initial_records
from hotrows.stores.row_order import Numbering
from hotrows.table import Table


@dataclass(frozen=True)
class Dict:
    """Opens a `DictStore`."""

    def open(
        self,
        tables: Sequence[Table],
        layout: RecordLayout,
        device: torch.device,
        seed: int,
        numbering: Numbering | None,
    ) -> Store:
        return DictStore(tables, layout, seed, numbering)


class DictStore:
    waits = True

    def __init__(
        self, tables: Sequence[Table], layout: RecordLayout, seed: int, numbering: Numbering | None = None
    ) -> None:
        self.layout = layout
        self.num_rows = sum(table.num_rows for table in tables)
        self.num_flushes = 0
        self.num_written = 0
        self.record_of: dict[int, bytes] = {}
        for rows, records in initial_records(tables, layout, torch.device("cpu"), seed, numbering):
            numbers = torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            self.write(numbers, records)

    def exchange(self, records: Tensor, moves: Moves) -> None:
        exchange_by_number(self, records, moves)

    def read(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        found = torch.empty(rows.numel(), self.layout.words, dtype=self.layout.dtype) if out is None else out
        for record, row in zip(found, rows.tolist(), strict=True):
            record.copy_(torch.frombuffer(bytearray(self.record_of[row]), dtype=self.layout.dtype))
        return found

    def write(self, rows: Tensor, records: Tensor) -> None:
        assert records.device.type == "cpu"
        assert rows.unique().numel() == rows.numel()
        for record, row in zip(records.contiguous(), rows.tolist(), strict=True):
            self.record_of[row] = record.numpy().tobytes()
        self.num_written += rows.numel()

    def read_range(self, start: int, stop: int) -> Tensor:
        return self.read(torch.arange(start, stop))

    def write_range(self, start: int, records: Tensor) -> None:
        self.write(torch.arange(start, start + records.shape[0]), records)

    def flush(self) -> None:
        self.num_flushes += 1
