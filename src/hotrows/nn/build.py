"""The tables of a module: checked, sized, and built into groups of rows before the first batch comes."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from hotrows.cache.capacity import cache_rows, check_cache
from hotrows.cache.indexes import INDEXES, check_index, choose_index, make_index
from hotrows.cache.maintenance import cached_rows
from hotrows.cache.planning.identity_planner import IdentityPlanner
from hotrows.cache.planning.planner import EagerPlanner
from hotrows.cache.policies import Policy, make_policy
from hotrows.cache.policies.frequency import Frequency
from hotrows.cache.row_cache import RowCache
from hotrows.cache.slots import Slots
from hotrows.cache.transfer import Transfer, ZeroCopy
from hotrows.nn.accumulation import Updates
from hotrows.optim import RowOptimizer, check_optimizer
from hotrows.stores import DeviceStore, RamStore, RecordLayout
from hotrows.stores.init import check_first_values
from hotrows.stores.memory_checks import available_host_memory, available_memory, readable, require_memory
from hotrows.stores.row_order import RowOrder
from hotrows.table import Table

MODES = ("sum", "mean", "max")
STORES = ("ram", "device")


class TableSet:
    """The tables of one dim and the group that holds their rows."""

    def __init__(self, tables: Sequence[Table], group: RowCache) -> None:
        self.tables = tuple(tables)
        self.group = group
        self.updates = Updates(group)
        self.first_row = {}
        row = 0
        for table in tables:
            self.first_row[table.name] = row
            row += table.num_rows

    def part(self, table: Table, name: str) -> Tensor:
        """One column block of the table's records: "weight" or a state field; flush first to see the current values.

        A view of the store; where the store has rows in an order of its own, a copy.
        """
        rows, columns = self._rows(table), self.group.store.layout.columns(name)
        if isinstance(rows, Tensor):
            num_bytes = rows.numel() * (columns.stop - columns.start) * self.group.store.layout.dtype.itemsize
            where = f"a copy of {name!r} of table {table.name!r}"
            require_memory(where, num_bytes, available_host_memory(), "host memory", "use tables with fewer rows")
        return self._all_records()[rows, columns]

    def set_part(self, table: Table, name: str, values: Tensor) -> None:
        """Write what `part` answers."""
        records = self._all_records()
        records[self._rows(table), self.group.store.layout.columns(name)] = values.to(records.device, records.dtype)

    def count_cached(self) -> dict[str, int]:
        """How many rows of each table are in the cache."""
        if self.group.is_resident:
            return {table.name: table.num_rows for table in self.tables}
        cached = torch.zeros(self.group.store.num_rows, dtype=torch.bool)
        cached[cached_rows(self.group)] = True
        return {table.name: int(cached[self._rows(table)].sum()) for table in self.tables}

    def _all_records(self) -> Tensor:
        return self.group.store.view(0, self.group.store.num_rows)

    def _rows(self, table: Table) -> slice | Tensor:
        """Where the rows of a table are in the store."""
        first = self.first_row[table.name]
        mine = slice(first, first + table.num_rows)
        numbering = self.group.numbering
        return mine if numbering is None else numbering.row_of[mine].long()


def choose_device(device: torch.device | str | None) -> torch.device:
    found = torch.get_default_device() if device is None else torch.device(device)
    if found.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device is {str(found)!r}, but PyTorch sees no CUDA device: use device='cpu'")
        return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)
    if found.type != "cpu":
        raise ValueError(f"device is {str(found)!r}: rows can be cached on 'cpu' or 'cuda'")
    return found


def check_arguments(
    tables: Sequence[Table],
    dim: int | None,
    mode: str,
    cache: int | str,
    optimizer: object,
    policy: str | Policy,
    index: str,
    store: str,
) -> list[int]:
    """Raise for what cannot be; answer the dim of every table."""
    if not tables:
        raise ValueError("no tables: give at least one hotrows.Table(name, num_rows)")
    for kind, names in (
        ("table", [table.name for table in tables]),
        ("feature", [name for table in tables for name in table.feature_names]),
    ):
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise ValueError(f"{kind} names must differ, but {', '.join(map(repr, double))} is there more than once")
    if dim is not None and (not isinstance(dim, int) or dim < 1):
        raise ValueError(f"dim is {dim!r}, it must be a whole number from 1 up")
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}: known are {', '.join(MODES)}")
    if store not in STORES:
        raise ValueError(f"store is {store!r}: known are {', '.join(STORES)}")
    check_cache(cache)
    check_index(index)
    make_policy(policy)
    check_optimizer(optimizer)
    dims = []
    for table in tables:
        check_first_values(table.init)
        width = table.dim or dim
        if width is None:
            raise ValueError(f"table {table.name!r} has no dim: give dim= to the collection or to the table")
        dims.append(width)
    return dims


def size_groups(
    by_dim: dict[int, list[Table]], cache: int | str, optimizer: RowOptimizer | None, index: str, store: str
) -> list[tuple[RecordLayout, int, str]]:
    """Record layout, number of slots and index of every group. A cache in rows or bytes is shared out by bytes."""
    fields = () if optimizer is None else optimizer.fields
    layouts = {dim: RecordLayout(dim, fields) for dim in by_dim}
    num_rows = {dim: sum(table.num_rows for table in tables) for dim, tables in by_dim.items()}
    total_rows = sum(num_rows.values())
    total_bytes = sum(num_rows[dim] * layouts[dim].num_bytes for dim in by_dim)
    # in rows of the average size, so that one number is shared out in proportion to the bytes of the groups
    total_slots = cache_rows(cache, total_rows, max(1, total_bytes // total_rows))
    sized = []
    for dim in by_dim:
        slots = min(num_rows[dim], max(1, round(total_slots * num_rows[dim] / total_rows)))
        if store == "device":
            sized.append((layouts[dim], num_rows[dim], "none"))
            continue
        name = choose_index(index, num_rows[dim], slots)
        sized.append((layouts[dim], INDEXES[name].round_slots(slots), name))
    return sized


def check_memory(
    by_dim: dict[int, list[Table]], plans: list[tuple[RecordLayout, int, str]], store: str, device: torch.device
) -> None:
    """Raise before anything is allocated if rows or caches of all groups do not fit."""
    if store == "device":
        if any(num >= 2**31 for _, num, _ in plans):
            raise ValueError("store='device' takes fewer than 2^31 rows of one dim: use store='ram' with a cache")
        rows = sum(num * layout.num_bytes for layout, num, _ in plans)
        require_memory(
            "all rows", rows, available_memory(device), f"memory on {device}", "use store='ram', with a cache on it"
        )
        return
    num_rows = {dim: sum(table.num_rows for table in tables) for dim, tables in by_dim.items()}
    slots = sum(num for _, num, _ in plans)
    caches = sum(num * layout.num_bytes for layout, num, _ in plans)
    indexes = sum(INDEXES[name].num_bytes(num_rows[layout.dim], num) for layout, num, name in plans)
    require_memory(
        f"a cache of {slots:,} rows ({readable(caches)}) and its index ({readable(indexes)})",
        caches + indexes,
        available_memory(device),
        f"memory on {device}",
        "make the cache smaller",
    )
    rows = sum(num_rows[layout.dim] * layout.num_bytes for layout, _, _ in plans)
    require_memory(
        f"{sum(num_rows.values()):,} rows",
        rows,
        available_host_memory(),
        "host memory",
        "use fewer rows, a smaller dim or an optimizer with less state",
    )


def make_set(
    tables: Sequence[Table],
    layout: RecordLayout,
    num_slots: int,
    optimizer: RowOptimizer | None,
    policy: str | Policy,
    index: str,
    store: str,
    device: torch.device,
    seed: int,
    row_order: RowOrder | None = None,
    transfer: Transfer | None = None,
) -> TableSet:
    num_rows = sum(table.num_rows for table in tables)
    if store == "device":
        resident = RowCache(DeviceStore(tables, layout, device, seed), IdentityPlanner(num_rows), optimizer, device)
        return TableSet(tables, resident)
    numbering = None if row_order is None else row_order.numbering(tables, device)
    rows = RamStore(tables, layout, device, seed, numbering)
    slots = Slots(num_slots, device)
    chosen = make_policy(policy)
    chosen.check(num_rows)
    if numbering is not None:
        chosen.remap(numbering.row_of)
    if isinstance(chosen, Frequency) and row_order is None:
        sizes = torch.tensor([table.num_rows for table in tables])
        chosen.ranking.number_within(sizes.cumsum(0) - sizes)
    planner = EagerPlanner(slots, make_index(index, num_rows, slots), chosen)
    own_mover = ZeroCopy() if transfer is None else copy.deepcopy(transfer)  # each group needs its own buffers
    return TableSet(tables, RowCache(rows, planner, optimizer, device, transfer=own_mover, numbering=numbering))
