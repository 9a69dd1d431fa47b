"""The tables of a module: checked, sized, and built into caches over stores before the first batch arrives."""

import copy
from collections.abc import Sequence

import torch

from hotrows.cache.capacity import cache_rows, check_cache
from hotrows.cache.indexes import INDEXES, check_index, choose_index, make_index
from hotrows.cache.planning.identity_planner import IdentityPlanner
from hotrows.cache.planning.planner import EagerPlanner
from hotrows.cache.planning.protocol import Planner
from hotrows.cache.policies import Policy, make_policy
from hotrows.cache.row_cache import RowCache
from hotrows.cache.row_updater import RowUpdater
from hotrows.cache.slots import Slots
from hotrows.cache.transfer import BlockTransmitter, Transfer, ZeroCopy
from hotrows.loop.scheduler import Scheduler
from hotrows.nn.table_set import TableSet
from hotrows.optim import RowOptimizer, check_optimizer
from hotrows.runtime.exclusive import Exclusive
from hotrows.stores import RecordLayout, Store, StoreSettings, choose_store, in_host_memory, needs_cache
from hotrows.stores.init import check_init
from hotrows.stores.memory_checks import available_host_memory, available_memory, readable, require_memory
from hotrows.stores.row_order import Numbering, RowOrder
from hotrows.table import Table

MODES = ("sum", "mean", "max")
NO_INDEX = "none"  # where all rows are on the device


def choose_device(device: torch.device | str | None) -> torch.device:
    try:
        found = torch.get_default_device() if device is None else torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device is {device!r}: rows can be cached on 'cpu' or 'cuda'") from None
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
    store: str | StoreSettings,
) -> list[int]:
    """Raise for arguments that cannot work, and return the dim of every table."""
    if not tables:
        raise ValueError("no tables: give at least one hotrows.Table(name, num_rows)")
    for table in tables:
        if not isinstance(table, Table):
            raise ValueError(f"a table is {table!r}: give hotrows.Table(name, num_rows)")
    for kind, names in (
        ("table", [table.name for table in tables]),
        ("feature", [name for table in tables for name in table.feature_names]),
    ):
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise ValueError(f"{kind} names must differ, but {', '.join(map(repr, double))} is there more than once")
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}: known are {', '.join(MODES)}")
    choose_store(store)
    check_cache(cache)
    check_index(index)
    make_policy(policy)
    check_optimizer(optimizer)
    dims = []
    for table in tables:
        check_init(table.init)
        width = table.dim or dim
        if width is None:
            raise ValueError(f"table {table.name!r} has no dim: give dim= to the collection or to the table")
        dims.append(width)
    return dims


def size_caches(
    by_dim: dict[int, list[Table]],
    cache: int | str,
    optimizer: RowOptimizer | None,
    index: str,
    store: str | StoreSettings,
) -> list[tuple[RecordLayout, int, str]]:
    """Record layout, number of slots and index for the tables of every dim. They share a cache in rows or bytes."""
    fields = () if optimizer is None else optimizer.fields
    layouts = {dim: RecordLayout.packed(dim, fields) for dim in by_dim}
    num_rows = {dim: sum(table.num_rows for table in tables) for dim, tables in by_dim.items()}
    total_rows = sum(num_rows.values())
    total_bytes = sum(num_rows[dim] * layouts[dim].num_bytes for dim in by_dim)
    # Counted in rows of the average size, so that each dim gets its share in proportion to its bytes.
    total_slots = cache_rows(cache, total_rows, max(1, total_bytes // total_rows))
    sized = []
    for dim in by_dim:
        slots = min(num_rows[dim], max(1, round(total_slots * num_rows[dim] / total_rows)))
        if not needs_cache(choose_store(store)):
            sized.append((layouts[dim], num_rows[dim], NO_INDEX))
            continue
        name = choose_index(index, num_rows[dim], slots)
        sized.append((layouts[dim], INDEXES[name].round_slots(slots), name))
    return sized


def check_memory(
    by_dim: dict[int, list[Table]],
    sizes: list[tuple[RecordLayout, int, str]],
    store: str | StoreSettings,
    device: torch.device,
) -> None:
    """Raise before anything is allocated if the rows or the caches of all tables do not fit."""
    settings = choose_store(store)
    num_rows = {dim: sum(table.num_rows for table in tables) for dim, tables in by_dim.items()}
    row_bytes = sum(num_rows[layout.dim] * layout.num_bytes for layout, _, _ in sizes)
    if not needs_cache(settings):
        if any(num >= 2**31 for num in num_rows.values()):
            raise ValueError("store='device' takes fewer than 2^31 rows of one dim: use store='ram' with a cache")
        require_memory(
            "all rows",
            row_bytes,
            available_memory(device),
            f"memory on {device}",
            "use store='ram', with a cache on it",
        )
        return
    slots = sum(num for _, num, _ in sizes)
    caches = sum(num * layout.num_bytes for layout, num, _ in sizes)
    indexes = sum(INDEXES[name].num_bytes(num_rows[layout.dim], num) for layout, num, name in sizes)
    require_memory(
        f"a cache of {slots:,} rows ({readable(caches)}) and its index ({readable(indexes)})",
        caches + indexes,
        available_memory(device),
        f"memory on {device}",
        "make the cache smaller",
    )
    if in_host_memory(settings):
        require_memory(
            f"{sum(num_rows.values()):,} rows",
            row_bytes,
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
    store: str | StoreSettings,
    device: torch.device,
    seed: int,
    row_order: RowOrder | None = None,
    transfer: Transfer | None = None,
    exclusive: Exclusive | None = None,
) -> TableSet:
    """Open the store of tables of one dim, put a cache in front of it, and a scheduler on top."""
    settings = choose_store(store)
    if needs_cache(settings):
        numbering = None if row_order is None else row_order.numbering(tables, device)
        rows = settings.open(tables, layout, device, seed, numbering)
        planner: Planner = _make_planner(tables, num_slots, policy, index, device, row_order, numbering)
        cache = RowCache(rows, planner, device, transfer=_own_transfer(transfer, rows, device), numbering=numbering)
    else:
        rows = settings.open(tables, layout, device, seed, None)
        cache = RowCache(rows, IdentityPlanner(rows.num_rows), device)
    return TableSet(tables, Scheduler(cache, RowUpdater(cache, optimizer), exclusive))


def _make_planner(
    tables: Sequence[Table],
    num_slots: int,
    policy: str | Policy,
    index: str,
    device: torch.device,
    row_order: RowOrder | None,
    numbering: Numbering | None,
) -> EagerPlanner:
    num_rows = sum(table.num_rows for table in tables)
    slots = Slots(num_slots, device)
    chosen = make_policy(policy)
    chosen.check(num_rows)
    if numbering is not None:
        chosen.remap(numbering.row_of)
    if row_order is None:
        sizes = torch.tensor([table.num_rows for table in tables], device="cpu")
        chosen.set_tables(sizes.cumsum(0) - sizes)
    return EagerPlanner(slots, make_index(index, num_rows, slots), chosen)


def _own_transfer(transfer: Transfer | None, store: Store, device: torch.device) -> Transfer:
    """The transfer of one cache: each cache needs its own, because a transfer has buffers."""
    own: Transfer = ZeroCopy() if transfer is None else copy.deepcopy(transfer)
    if device.type == "cuda" and store.waits and not own.waits:
        return BlockTransmitter()  # No kernel can address this store.
    return own
