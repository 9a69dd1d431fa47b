"""The common part of the embedding modules: their table sets, and what `nn.Module` and `hotrows.lookahead` need."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from hotrows.cache.policies import Policy
from hotrows.cache.row_cache import RowCache
from hotrows.cache.stats import Stats
from hotrows.cache.transfer import Transfer
from hotrows.loop.preload import unpin
from hotrows.loop.scheduler import Scheduler
from hotrows.loop.ticket import BatchTicket
from hotrows.nn.build import check_arguments, check_memory, choose_device, make_set, size_caches
from hotrows.nn.forward import CapturedParts, ForwardPass, OpenLoop
from hotrows.nn.lookups import Lookups
from hotrows.nn.table_set import TableSet
from hotrows.optim import RowOptimizer
from hotrows.runtime.exclusive import Exclusive
from hotrows.stores import Contents, StoreSettings
from hotrows.stores.row_order import RowOrder
from hotrows.table import Table, whole_number

logger = logging.getLogger("hotrows")


class CachedModule(nn.Module):
    """Base of `EmbeddingBag` and `EmbeddingBagCollection`."""

    def __init__(
        self,
        tables: Sequence[Table],
        dim: int | None,
        mode: str,
        cache: int | str,
        optimizer: RowOptimizer | None,
        policy: str | Policy,
        index: str,
        store: str | StoreSettings,
        device: torch.device | str | None,
        seed: int,
        row_order: RowOrder | None = None,
        transfer: Transfer | None = None,
    ) -> None:
        super().__init__()
        dim = None if dim is None else whole_number(dim, "dim")
        cache = int(cache) if isinstance(cache, Integral) and not isinstance(cache, bool) else cache
        seed = whole_number(seed, "seed", least=None)
        self.tables = tuple(tables)
        self.mode = mode
        self.optimizer = optimizer
        self.device = choose_device(device)
        dims = check_arguments(self.tables, dim, mode, cache, optimizer, policy, index, store)
        self.dims = {table.name: width for table, width in zip(self.tables, dims, strict=True)}
        by_dim: dict[int, list[Table]] = {}
        for table, width in zip(self.tables, dims, strict=True):
            by_dim.setdefault(width, []).append(table)
        sizes = size_caches(by_dim, cache, optimizer, index, store)
        check_memory(by_dim, sizes, store, self.device)
        # Rows are no parameters. This one, without elements, makes `requires_grad_` of any module around this one reach
        # it, and its version counts what changes parameters in place.
        with torch.inference_mode(False):  # a tensor of inference mode has no version
            self.rows = nn.Parameter(torch.empty(0, dtype=torch.float32, device=self.device))
        self._has_warned = False
        self.exclusive = Exclusive()
        self._sets = [
            make_set(
                by_dim[layout.dim], layout, num_slots, optimizer, policy, name, store, self.device, seed,
                row_order, transfer, self.exclusive,
            )
            for layout, num_slots, name in sizes
        ]  # fmt: skip
        self.index = sizes[0][2]
        self._forward_pass = ForwardPass(self._sets, mode, self.device, self.exclusive)
        self._open_loop = OpenLoop()
        if optimizer is not None:
            optimizer.attach(self)

    def _pooled(self, lookups: Sequence[Lookups]) -> list[Tensor]:
        """Pooled rows of each table set, float32 [bags, D]."""
        trains = self.trains_rows
        if trains and self.optimizer is None:
            raise ValueError(
                "these rows have no optimizer: pass optimizer=hotrows.optim.SGD(lr=...) to train them, or use "
                "model.eval() or torch.no_grad() to read them"
            )
        if not self._has_warned and self.rows._version:
            self._warn_of_changes()
        self._open_loop.close_pending()
        return self._forward_pass.pool(lookups, trains, is_trainable=self.optimizer is not None and not self.is_frozen)

    @property
    def is_frozen(self) -> bool:
        """`requires_grad_(False)` was called on this module, or on one around it."""
        return not self.rows.requires_grad

    @property
    def trains_rows(self) -> bool:
        """The backward pass of a forward pass that begins now updates rows."""
        return self.training and torch.is_grad_enabled() and not self.is_frozen

    def _warn_of_changes(self) -> None:
        self._has_warned = True
        logger.warning(
            "something has changed the parameters of embedding bags in place, as torch.nn.init and "
            "torch.optim.swa_utils.AveragedModel do. Rows are no parameters and were not changed: set them with "
            "load_weight()"
        )

    def _lookups(self, ids: Any) -> list[Lookups]:
        """Each table set's part of what the argument `ids` of `hotrows.lookahead` returned."""
        raise NotImplementedError

    def announce(self, ids: Any) -> list[BatchTicket]:
        """Announce a batch to every cache; one ticket each."""
        return self._forward_pass.announce(self._lookups(ids))

    def open_lookahead(self, close: Callable[[], None]) -> None:
        """A loop begins; `close` ends it."""
        self._open_loop.open(close)

    def close_lookahead(self, close: Callable[[], None] | None = None) -> None:
        """End the open loop; there is at most one. With `close`, only if that is the function that ends it."""
        self._open_loop.close(close)

    def set_current(self, tickets: list[BatchTicket] | None) -> None:
        """The batch that the next forward pass is expected to look up."""
        self._forward_pass.current = tickets

    @property
    def current(self) -> list[BatchTicket] | None:
        """The tickets of the batch whose iteration it is, one for each cache."""
        return self._forward_pass.current

    def current_ids(self) -> Sequence[Tensor]:
        """The id tensors of that batch."""
        return [ids for ticket in self.current or () for ids in ticket.ids]

    def captured(self, parts: CapturedParts, ids: list[Tensor]) -> AbstractContextManager[None]:
        """Forward passes inside are those of a captured step; see `ForwardPass.captured`."""
        return self._forward_pass.captured(parts, ids)

    @property
    def is_accumulating(self) -> bool:
        """`accumulate` is open."""
        return self._forward_pass.step.is_accumulating

    @property
    def schedulers(self) -> list[Scheduler]:
        """The scheduler of each cache."""
        return [tables.scheduler for tables in self._sets]

    @property
    def caches(self) -> list[RowCache]:
        """The cache of the tables of each dim."""
        return [tables.cache for tables in self._sets]

    def close_lookahead_later(self, close: Callable[[], None]) -> None:
        """`close_lookahead`, from any thread at any time. It takes effect before the next forward pass or `flush`."""
        self._open_loop.close_later(close)

    def flush(self) -> None:
        """Write every changed row back to the store, and raise what is still to be raised for bad ids."""
        self._open_loop.close_pending()
        for scheduler in self.schedulers:
            scheduler.flush()
        with self.exclusive:
            for scheduler in self.schedulers:
                scheduler.bad_ids.check()

    def stats(self) -> Stats:
        """What happened in the caches so far."""
        total = Stats()
        for scheduler in self.schedulers:
            total = total + scheduler.totals()
        return total

    def cached_rows(self) -> dict[str, int]:
        """How many rows of each table are in the cache."""
        counted = {name: num for tables in self._sets for name, num in tables.count_cached().items()}
        return {table.name: counted[table.name] for table in self.tables}

    def cache_of(self, name: str) -> RowCache:
        """The cache of a table's rows."""
        return self._find(name)[1].cache

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Add up the gradients of all backward passes inside, and apply them as one optimizer step at the end::

        with bags.accumulate():
            for part in parts:
                (loss_fn(model(part)) / len(parts)).backward()
        """
        with self._forward_pass.step.accumulate():
            yield

    def unpin(self) -> None:
        """Let pinned rows be evicted again."""
        for scheduler in self.schedulers:
            unpin(scheduler)

    def row_state(self, name: str) -> dict[str, Tensor]:
        """A copy of the optimizer state of a table: "step", and each field of the state.

        `optimizer.state_dict()` has it for all tables.
        """
        table, tables = self._find(name)
        return tables.state(table)

    def load_row_state(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Set what `row_state` returns. Tables of one dim count their steps together."""
        table, tables = self._find(name)
        tables.load_state(table, state)

    def _find(self, name: str) -> tuple[Table, TableSet]:
        """A table and the set that it belongs to."""
        for tables in self._sets:
            for table in tables.tables:
                if table.name == name:
                    return table, tables
        raise ValueError(f"no table {name!r}: there are {', '.join(table.name for table in self.tables)}")

    def _state_key(self, table: Table) -> str:
        return f"{table.name}.weight"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.flush()
        for table in self.tables:
            destination[prefix + self._state_key(table)] = self._find(table.name)[1].weight(table)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        keys = {prefix + self._state_key(table): table for table in self.tables}
        for key, table in keys.items():
            if key not in state_dict:
                missing_keys.append(key)
                continue
            try:
                self._find(table.name)[1].load_weight(table, state_dict[key])
            except ValueError as error:
                error_msgs.append(str(error))
        if strict:
            unexpected_keys.extend(key for key in state_dict if key.startswith(prefix) and key not in keys)

    def _apply(self, fn: Any, recurse: bool = True) -> "CachedModule":
        wanted = fn(torch.zeros((), dtype=torch.float32, device=self.device))
        if wanted.device != self.device:
            raise ValueError(
                f"the cache is on {self.device} and cannot move to {wanted.device}: make the bags with "
                f"device={str(wanted.device)!r}"
            )
        if wanted.dtype != torch.float32:
            raise ValueError(f"rows are float32 and cannot become {wanted.dtype}: use torch.autocast for the model")
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copying and pickling carry the records and leave the cache behind."""
        self.flush()
        contents = [Contents(cache.store) for cache in self.caches]
        steps = [scheduler.updater.steps for scheduler in self.schedulers]
        return _rebuild, (type(self), self._arguments(), contents, steps, self.training, self.is_frozen)

    def _arguments(self) -> dict[str, Any]:
        """The constructor's arguments for another module like this."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        rows = sum(table.num_rows for table in self.tables)
        slots = sum(cache.num_slots for cache in self.caches)
        optimizer = type(self.optimizer).__name__ if self.optimizer else None
        return (
            f"{len(self.tables)} table(s), {rows:,} rows, mode={self.mode}, cache={slots:,} rows on {self.device}, "
            f"index={self.index}, optimizer={optimizer}"
        )


def _rebuild(
    kind: type[CachedModule],
    arguments: dict[str, Any],
    contents: list[Contents],
    steps: list[int],
    training: bool,
    frozen: bool,
) -> CachedModule:
    module = kind(**arguments)
    module.requires_grad_(not frozen)
    for scheduler, copied, num_steps in zip(module.schedulers, contents, steps, strict=True):
        copied.write_to(scheduler.cache.store)
        scheduler.updater.steps = num_steps
    return module.train(training)
