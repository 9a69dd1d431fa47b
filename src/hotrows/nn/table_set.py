"""The tables of one dim: their cache, its scheduler, and everything that reads or writes whole tables."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from hotrows.cache.row_cache import RowCache
from hotrows.errors import BadIdError
from hotrows.loop.preload import pin
from hotrows.loop.scheduler import Scheduler
from hotrows.nn.lookups import on_device
from hotrows.stores import Store
from hotrows.stores.memory_checks import available_host_memory, require_memory
from hotrows.stores.record import WEIGHT
from hotrows.table import Table

if TYPE_CHECKING:
    import numpy as np

    Ids = Tensor | np.ndarray[Any, Any] | Sequence[int]
else:
    Ids = Any

ID_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
CHUNK_BYTES = 1 << 26  # of records that are read or written at a time where a whole table is


class TableSet:
    """The tables of one dim, their cache and its scheduler."""

    def __init__(self, tables: Sequence[Table], scheduler: Scheduler) -> None:
        self.tables = tuple(tables)
        self.scheduler = scheduler
        self.cache: RowCache = scheduler.cache
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

    def weight(self, table: Table) -> Tensor:
        """A copy of a table's weights on the host, float32 [num_rows, dim]."""
        with self.scheduler.exclusive:
            self.scheduler.flush()
            return self.part(table, WEIGHT)

    def load_weight(self, table: Table, weight: Tensor) -> None:
        """Set all weights of a table."""
        expected = (table.num_rows, self.cache.dim)
        if not has_dense_values(weight) or tuple(weight.shape) != expected or not weight.is_floating_point():
            raise ValueError(
                f"table {table.name!r}: weight is {described(weight)}, expected {list(expected)} as a tensor of floats"
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
        """Set what `state` returns. If anything is wrong with it, nothing is changed."""
        fields = self.cache.store.layout.state
        expected = ["step", *(field.name for field in fields)]
        if not isinstance(state, Mapping) or set(state) != set(expected):
            given = sorted(map(str, state)) if isinstance(state, Mapping) else f"no dict but {described(state)}"
            raise ValueError(f"state of table {table.name!r} has {given}, expected {sorted(expected)}")
        for field in fields:
            values, shape = state[field.name], (table.num_rows, field.num)
            if not has_dense_values(values) or values.shape != shape or values.dtype != field.dtype:
                raise ValueError(
                    f"state of table {table.name!r}: {field.name} is {described(values)}, expected a tensor "
                    f"{field.dtype} {list(shape)}"
                )
        steps = _step_count(table, state["step"])
        with self._writing():
            for field in fields:
                self.set_part(table, field.name, state[field.name].detach())
            self.scheduler.updater.steps = steps

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """The store is written inside. However that ends, the cache then has what the store has."""
        with self.scheduler.exclusive:
            self.scheduler.flush()
            try:
                yield
            finally:
                self.scheduler.reload()

    def pin(self, table: Table, ids: Ids) -> None:
        """Bring the rows of these ids into the cache and never evict them."""
        given = _whole_ids(ids)
        if given.numel() and (int(given.min()) < 0 or int(given.max()) >= table.num_rows):
            raise BadIdError(
                f"pin: ids from {int(given.min())} to {int(given.max())}, "
                f"table {table.name!r} has 0 to {table.num_rows - 1}"
            )
        pin(self.scheduler, on_device(given + self.first_row[table.name], self.cache.device))

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


def _whole_ids(ids: Ids) -> Tensor:
    """int64 [N] ids from what a user gave."""
    try:
        given = ids.detach() if isinstance(ids, Tensor) else torch.tensor(ids)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(
            f"pin: ids are {ids!r:.80}, give a tensor, an array or a list of whole numbers below 2^63"
        ) from None
    if given.numel() and given.dtype not in ID_TYPES:
        raise ValueError(f"pin: ids are {given.dtype}, give whole numbers as int64 (or int32)")
    return given.to(torch.int64).flatten()


def _step_count(table: Table, step: object) -> int:
    """The number of steps in a saved state, which has it as a float32 tensor, like `torch.optim`."""
    given = step.item() if has_dense_values(step) and step.numel() == 1 else step
    number = float(given) if isinstance(given, Real) and not isinstance(given, bool) else -1.0
    if not math.isfinite(number) or number < 0 or number != int(number):
        raise ValueError(f"state of table {table.name!r}: step is {step!r}, it must be a whole number from 0 up")
    return int(number)


def has_dense_values(value: object) -> TypeGuard[Tensor]:
    """True for a tensor that can be copied from: not a sparse or nested one, and not one of the meta device."""
    return isinstance(value, Tensor) and not value.is_nested and not value.is_meta and value.layout is torch.strided


def described(value: object) -> str:
    """The dtype and the shape of a tensor, and what it has in place of dense values. The type of anything else."""
    if not isinstance(value, Tensor) or value.is_nested:
        return "a nested tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    what = f"{value.dtype} {list(value.shape)}"
    if value.is_meta:
        return f"{what} on the device 'meta', where tensors have no values"
    return what if value.layout is torch.strided else f"{what} with the layout {value.layout} (use to_dense())"
