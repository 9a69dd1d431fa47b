"""A data set in memory, for tests."""

from collections.abc import Iterator
from typing import Any

import torch

from hotrows.batch import Batch, Jagged
from hotrows.data.schema import Column, Loader, Schema


class MemoryLoader:
    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class MemoryDataSet:
    """Samples with their ids in bags[sample][column], a list of ids. Columns without sequences have one id each."""

    name = "memory"

    def __init__(self, columns: tuple[Column, ...], bags: list[list[list[int]]]) -> None:
        self.schema = Schema(dense=(), categorical=columns)
        self.bags = bags

    @classmethod
    def of(cls, ids: torch.Tensor, rows: tuple[int, ...]) -> "MemoryDataSet":
        """Make it from one id per column: ids [samples, F]."""
        columns = tuple(Column(f"c{i}", num) for i, num in enumerate(rows))
        return cls(columns, [[[id] for id in sample] for sample in ids.tolist()])

    def num_samples(self, split: str) -> int:
        return len(self.bags)

    def loader(
        self,
        split: str,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
    ) -> Loader:
        parts = [self.bags[first : first + batch_size] for first in range(0, len(self.bags), batch_size)]
        return MemoryLoader([Batch(torch.empty(len(p), 0), self._ids(p), torch.zeros(len(p))) for p in parts])

    def counts(self) -> dict[str, torch.Tensor]:
        found = {table: torch.zeros(rows, dtype=torch.int64) for table, rows in self.schema.tables.items()}
        for index, column in enumerate(self.schema.categorical):
            ids = torch.tensor([id for sample in self.bags for id in sample[index]], dtype=torch.int64)
            found[column.table] += torch.bincount(ids, minlength=len(found[column.table]))
        return found

    def _ids(self, bags: list[list[list[int]]]) -> torch.Tensor | Jagged:
        if not self.schema.has_sequences:
            return torch.tensor([[bag[0] for bag in sample] for sample in bags])
        columns = range(len(self.schema.categorical))
        values = [id for index in columns for sample in bags for id in sample[index]]
        lengths = [[len(sample[index]) for sample in bags] for index in columns]
        return Jagged(torch.tensor(values, dtype=torch.int64), torch.tensor(lengths))
