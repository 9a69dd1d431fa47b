"""The tables of one dim: their cache, its scheduler, and everything that reads or writes whole tables."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from hotrows.cache.row_cache import RowCache
from hotrows.loop.preload import pin
from hotrows.loop.scheduler import Scheduler
from hotrows.nn.accumulation import GradientAccumulation, make_anchor
from hotrows.nn.lookups import on_device
from hotrows.stores import Store
from hotrows.stores.memory_checks import available_host_memory, require_memory
from hotrows.stores.record import WEIGHT
from hotrows.table import Table

CHUNK_BYTES = 1 << 26  # of records that are read or written at a time where a whole table is


class TableSet:
    """The tables of one dim: their cache, its scheduler, and the gradients that wait for it."""

    def __init__(self, tables: Sequence[Table], scheduler: Scheduler) -> None:
        self.tables = tuple(tables)
        self.scheduler = scheduler
        self.cache: RowCache = scheduler.cache
        self.accumulation = GradientAccumulation(scheduler)
        self.anchor = make_anchor(self.accumulation, scheduler.device)
        self.first_row = {}
        row = 0
        for table in tables:
            self.first_row[table.name] = row
            row += table.num_rows

    def part(self, table: Table, name: str) -> Tensor:
        """A copy of one field of the table's records, "weight" or a state field, on the host: [num_rows, num].

        The store has the current values only after a flush.
        """
        store = self.cache.store
        field = store.layout.field(name)
        require_memory(
            f"a copy of {name!r} of table {table.name!r}",
            table.num_rows * field.num * field.dtype.itemsize,
            available_host_memory(),
            "host memory",
            "use tables with fewer rows",
        )
        values = torch.empty(table.num_rows, field.num, dtype=field.dtype, device="cpu")
        for ids, rows in self._chunks(table, 0, table.num_rows):
            values[ids] = store.layout.values(_read(store, rows), name)
        return values

    def set_part(self, table: Table, name: str, values: Tensor, first_id: int | None = None) -> None:
        """Set one field of all rows of a table, or of as many rows as there are values from `first_id` on."""
        store, first = self.cache.store, first_id or 0
        num = table.num_rows if first_id is None else values.shape[0]
        expected = (num, store.layout.field(name).num)
        if tuple(values.shape) != expected or first + num > table.num_rows:
            raise ValueError(
                f"table {table.name!r}: {name} of rows {first} to {first + num - 1} is {list(values.shape)}, expected "
                f"{list(expected)} within {table.num_rows} rows"
            )
        for ids, rows in self._chunks(table, first, first + num):
            records = _read(store, rows)
            store.layout.values(records, name).copy_(values[ids.start - first : ids.stop - first])
            _write(store, rows, records)

    def count_cached(self) -> dict[str, int]:
        """How many rows of each table are in the cache."""
        if self.cache.holds_all_rows:
            return {table.name: table.num_rows for table in self.tables}
        cached = torch.zeros(self.cache.store.num_rows, dtype=torch.bool, device="cpu")
        with self.scheduler.exclusive:
            self.scheduler.streams.wait_for_moves()
            cached[self.cache.cached_rows()] = True
        return {
            table.name: sum(int(cached[rows].sum()) for _, rows in self._chunks(table, 0, table.num_rows))
            for table in self.tables
        }

    # -- whole tables, as users see them -----------------------------------------------------------------------------

    def weight(self, table: Table) -> Tensor:
        """A copy of a table's weights on the host, float32 [num_rows, dim]."""
        with self.scheduler.exclusive:
            self.scheduler.flush()
            return self.part(table, WEIGHT)

    def load_weight(self, table: Table, weight: Tensor) -> None:
        """Set all weights of a table."""
        expected = (table.num_rows, self.cache.dim)
        if tuple(weight.shape) != expected or not weight.is_floating_point():
            raise ValueError(
                f"table {table.name!r}: weight is {weight.dtype} {list(weight.shape)}, expected {list(expected)}"
            )
        with self._writing():
            self.set_part(table, WEIGHT, weight.detach())

    def state(self, table: Table) -> dict[str, Tensor]:
        """A copy of a table's optimizer state on the host: "step", and each field of the state."""
        with self.scheduler.exclusive:
            self.scheduler.flush()
            fields = {field.name: self.part(table, field.name) for field in self.cache.store.layout.state}
            return {"step": torch.tensor(float(self.scheduler.updater.steps)), **fields}

    def load_state(self, table: Table, state: Mapping[str, Tensor]) -> None:
        """Set what `state` returns."""
        fields = [field.name for field in self.cache.store.layout.state]
        if set(state) != {"step", *fields}:
            raise ValueError(f"state of table {table.name!r} has {sorted(state)}, expected {sorted(['step', *fields])}")
        with self._writing():
            for field in fields:
                self.set_part(table, field, state[field])
            self.scheduler.updater.steps = int(state["step"])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """The store is written inside. However that ends, the cache then has what the store has."""
        with self.scheduler.exclusive:
            self.scheduler.flush()
            try:
                yield
            finally:
                self.scheduler.reload()

    def pin(self, table: Table, ids: Tensor) -> None:
        """Bring the rows of these ids into the cache and never evict them."""
        ids = torch.as_tensor(ids, dtype=torch.int64).flatten()
        if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= table.num_rows):
            raise ValueError(
                f"pin: ids from {int(ids.min())} to {int(ids.max())}, "
                f"table {table.name!r} has 0 to {table.num_rows - 1}"
            )
        pin(self.scheduler, on_device(ids + self.first_row[table.name], self.cache.device))

    def _chunks(self, table: Table, first_id: int, end: int) -> Iterator[tuple[slice, slice | Tensor]]:
        """Ids of a table in bounded chunks, each with its rows in the store."""
        numbering, first_row = self.cache.numbering, self.first_row[table.name]
        step = max(1, CHUNK_BYTES // self.cache.store.layout.num_bytes)
        for start in range(first_id, end, step):
            ids = slice(start, min(start + step, end))
            rows = slice(first_row + ids.start, first_row + ids.stop)
            yield ids, (rows if numbering is None else numbering.row_of[rows].long())


def _read(store: Store, rows: slice | Tensor) -> Tensor:
    return store.read(rows) if isinstance(rows, Tensor) else store.read_range(rows.start, rows.stop)


def _write(store: Store, rows: slice | Tensor, records: Tensor) -> None:
    if isinstance(rows, Tensor):
        store.write(rows, records)
    else:
        store.write_range(rows.start, records)
