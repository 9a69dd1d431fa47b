"""The common part of the embedding bag modules: groups of rows, and everything that is done to whole tables."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from hotrows.cache import maintenance
from hotrows.cache.planning.planner import Placement
from hotrows.cache.policies import Policy
from hotrows.cache.row_cache import RowCache
from hotrows.cache.stats import Stats
from hotrows.cache.transfer import Transfer
from hotrows.loop.ticket import Flight, Request
from hotrows.nn.accumulation import CapturedUpdates
from hotrows.nn.autograd import PooledRows, updated_first
from hotrows.nn.build import TableSet, check_arguments, check_memory, choose_device, make_set, size_groups
from hotrows.nn.lookups import Lookups, on_device
from hotrows.optim import RowOptimizer
from hotrows.runtime.streams import use_device
from hotrows.stores.memory_checks import available_host_memory, require_memory
from hotrows.stores.row_order import RowOrder
from hotrows.table import Table

logger = logging.getLogger("hotrows")


class Ahead:
    """A batch that was looked ahead: its ids, and what each group planned for them."""

    __slots__ = ("_versions", "flights", "ids", "requests")

    def __init__(self, lookups: Sequence[Lookups], requests: list[Request]) -> None:
        self.requests = requests
        self.flights: list[Flight | None] = [None] * len(requests)
        self.ids: list[Tensor] = []  # the user's tensors that decide the rows
        for part in lookups:
            self.ids += part.key
        self._versions = _versions(self.ids)

    def is_of(self, values: list[Any]) -> bool:
        """Whether these are a batch's values with the ids that were looked ahead, unchanged since."""
        for ids in self.ids:
            for value in values:
                if value is ids:
                    break
            else:
                return False
        return _versions(self.ids) == self._versions

    def matches(self, lookups: Sequence[Lookups]) -> bool:
        """Whether a forward pass looks up what was looked ahead."""
        given = [tensor for part in lookups for tensor in part.key]
        return all(_same(*each) for each in zip(self.ids, self._versions, given, strict=True))


def _same(old: Tensor, version: int, new: Tensor) -> bool:
    if old is new:
        return _versions([new]) == [version]
    # comparing costs a synchronization on a GPU, planning anew does not
    return old.device.type == new.device.type == "cpu" and _versions([old]) == [version] and torch.equal(old, new)


_version = attrgetter("_version")


def _versions(tensors: list[Tensor]) -> list[int]:
    """Count the changes in place; PyTorch does not count those of inference tensors."""
    try:
        return [*map(_version, tensors)]
    except RuntimeError:  # which says so; to ask each of them takes longer
        return [-1 if tensor.is_inference() else tensor._version for tensor in tensors]


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
        store: str,
        device: torch.device | str | None,
        seed: int,
        row_order: RowOrder | None = None,
        transfer: Transfer | None = None,
    ) -> None:
        super().__init__()
        self.tables = tuple(tables)
        self.mode = mode
        self.optimizer = optimizer
        self.device = choose_device(device)
        self._anchor = torch.zeros((), dtype=torch.float32, device=self.device, requires_grad=True)
        self._ahead: Ahead | None = None
        self._recorded: list[tuple[Flight, CapturedUpdates]] | None = None
        self._recorded_ids: list[Tensor] = []
        self._close_lookahead: Callable[[], None] | None = None
        self._warned = False
        self._frozen = False
        dims = check_arguments(self.tables, dim, mode, cache, optimizer, policy, index, store)
        self.dims = {table.name: width for table, width in zip(self.tables, dims, strict=True)}
        by_dim: dict[int, list[Table]] = {}
        for table, width in zip(self.tables, dims, strict=True):
            by_dim.setdefault(width, []).append(table)
        plans = size_groups(by_dim, cache, optimizer, index, store)
        check_memory(by_dim, plans, store, self.device)
        self._sets = [
            make_set(
                by_dim[layout.dim], layout, num_slots, optimizer, policy, name, store, self.device, seed,
                row_order, transfer,
            )
            for layout, num_slots, name in plans
        ]  # fmt: skip
        self.index = plans[0][2]
        self._set_of = {table.name: tables for tables in self._sets for table in tables.tables}
        if optimizer is not None:
            optimizer.attach(self)

    # -- forward --------------------------------------------------------------------------------------------------

    def _pooled(self, lookups: Sequence[Lookups]) -> list[Tensor]:
        """float32 [bags, D] of each group."""
        if self._recorded is not None:
            return self._pooled_in_recording(self._recorded, lookups)
        trains = self.training and torch.is_grad_enabled() and not self._frozen
        ahead = self._ahead
        if ahead is not None and not ahead.matches(lookups):
            ahead = None
            if trains:
                self._warn_of_mismatch()
        if trains and self.optimizer is None:
            raise ValueError(
                "these rows have no optimizer: pass optimizer=hotrows.optim.SGD(lr=...) to train them, or use "
                "model.eval() or torch.no_grad() to read them"
            )
        with use_device(self.device):
            return [
                self._pooled_of(tables, part, None if ahead is None else (ahead.requests[i], ahead.flights[i]), trains)
                for i, (tables, part) in enumerate(zip(self._sets, lookups, strict=True))
            ]

    def _answer(self, embedded: Tensor) -> Tensor:
        """What a forward pass answers: in a recording, with its rows updated as soon as their gradient is there.

        Elsewhere they are updated last, if they were looked up first, so that where the backward pass fails on its way
        (out of memory), the batch can be tried again.
        """
        return embedded if self._recorded is None else updated_first(embedded)

    def _pooled_of(
        self, tables: TableSet, lookups: Lookups, ahead: tuple[Request, Flight | None] | None, trains: bool
    ) -> Tensor:
        group = tables.group
        group.check(wait=False)
        request, flight = ahead or (group.request(lookups.make, lookups.describe), None)
        if flight is not None and flight.landed and flight.seat is not None:
            # the place of its rows may be another batch's by now
            request, flight = group.request(lookups.make, lookups.describe), None
        if flight is None or flight.landed:
            if self.device.type == "cpu":
                request.check()
            else:
                group.check_later(request)
            flight = group.plan_now(request, Placement.SPILL if trains else Placement.READ_ONLY)
        else:
            group.hold(flight)
        try:
            group.acquire(flight)
            anchor = self._anchor if trains else self._anchor.detach()
            updates = tables.updates if trains else None
            pooled: Tensor = PooledRows.apply(  # type: ignore[no-untyped-call]
                anchor, lookups.weights, group, flight, lookups.offsets, self.mode, updates
            )
            group.note_use(flight)
            return pooled
        finally:
            group.drop(flight)

    def _pooled_in_recording(
        self, parts: list[tuple[Flight, CapturedUpdates]], lookups: Sequence[Lookups]
    ) -> list[Tensor]:
        if not (self.training and torch.is_grad_enabled()) or self._frozen:
            raise RuntimeError("the bags are read, not trained, in a step")
        if not all(any(ids is known for known in self._recorded_ids) for part in lookups for ids in part.key):
            raise RuntimeError("the bags are called with other ids than the batch's")
        return [
            PooledRows.apply(self._anchor, None, tables.group, flight, None, self.mode, updates)  # type: ignore[no-untyped-call]
            for tables, (flight, updates) in zip(self._sets, parts, strict=True)
        ]

    def _warn_of_mismatch(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "the ids of this forward pass are not the tensor that lookahead() was given, so they are planned on "
                "the spot: pass the ids of the batch as they came, or change them before lookahead()"
            )

    # -- looking ahead --------------------------------------------------------------------------------------------

    def _lookups(self, ids: Any) -> list[Lookups]:
        """The groups' parts of what `ids` of `lookahead` answered."""
        raise NotImplementedError

    def look_at(self, ids: Any) -> Ahead:
        """Announce a batch to the policies. Used by `hotrows.lookahead`."""
        lookups = self._lookups(ids)
        requests: list[Request] = []
        try:
            for tables, part in zip(self._sets, lookups, strict=True):
                group, request = tables.group, None
                if part.columns is not None:
                    request = group.announce_ids(part.key[0], part.columns, part.describe)
                requests.append(request or group.request(part.make, part.describe, announce=True))
        except BaseException:  # then it comes to none of them
            for tables, request in zip(self._sets, requests, strict=False):
                tables.group.withdraw(request)
            raise
        return Ahead(lookups, requests)

    def open_lookahead(self, close: Callable[[], None]) -> None:
        """A loop that looks ahead begins. Used by `hotrows.lookahead`."""
        self._close_lookahead = close

    def close_lookahead(self, close: Callable[[], None] | None = None) -> None:
        """End the loop that is open (only the given one, if given): there can be one at a time."""
        opened = self._close_lookahead
        if opened is not None and close in (None, opened):
            self._close_lookahead = None
            opened()

    def set_current(self, ahead: Ahead | None) -> None:
        """The batch that the next forward pass is expected to be of. Used by `hotrows.lookahead`."""
        object.__setattr__(self, "_ahead", ahead)  # twice a step, and no module or parameter

    @property
    def current(self) -> Ahead | None:
        """The batch whose turn it is in `hotrows.lookahead`."""
        return self._ahead

    def current_ids(self) -> list[Tensor]:
        return [] if self._ahead is None else self._ahead.ids

    @contextmanager
    def recorded(self, parts: list[tuple[Flight, CapturedUpdates]], ids: list[Tensor]) -> Iterator[None]:
        """Forward passes inside are those of a recorded step, on these plans. Used by `hotrows.graphed`.

        Args:
            ids: the tensors that stand for the planned ids.
        """
        self._recorded, self._recorded_ids = parts, ids
        try:
            yield
        finally:
            self._recorded, self._recorded_ids = None, []

    @property
    def is_accumulating(self) -> bool:
        """Whether `accumulate` is open."""
        for tables in self._sets:  # noqa: SIM110  (takes longer)
            if tables.updates.is_accumulating:
                return True
        return False

    @property
    def groups(self) -> list[RowCache]:
        return [tables.group for tables in self._sets]

    def group_of(self, name: str) -> RowCache:
        """The group that holds the rows of a table."""
        return self._set_of[self._table(name).name].group

    # -- whole tables ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write every changed row back to the store, and raise what is still to be raised for bad ids."""
        for group in self.groups:
            maintenance.flush(group)
        for group in self.groups:
            group.check()

    def stats(self) -> Stats:
        """What happened in the cache so far."""
        total = Stats()
        for group in self.groups:
            total = total + group.totals()
        return total

    def cached_rows(self) -> dict[str, int]:
        """How many rows of each table are in the cache."""
        counted = {name: num for tables in self._sets for name, num in tables.count_cached().items()}
        return {table.name: counted[table.name] for table in self.tables}

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Add up the gradients of all backward passes inside, and apply them as one optimizer step at the end::

        with bags.accumulate():
            for part in parts:
                (loss_fn(model(part)) / len(parts)).backward()
        """
        with ExitStack() as stack:
            for tables in self._sets:
                stack.enter_context(tables.updates.accumulate())
            yield

    def _weight(self, name: str) -> Tensor:
        self.flush()
        table = self._table(name)
        tables = self._set_of[name]
        layout = tables.group.store.layout
        num_bytes = table.num_rows * layout.dim * layout.dtype.itemsize
        require_memory(
            f"a copy of table {name!r}", num_bytes, available_host_memory(), "host memory", "read it in parts"
        )
        weight = tables.part(table, "weight")
        return weight.to("cpu", copy=True, memory_format=torch.contiguous_format)

    def _load_weight(self, name: str, weight: Tensor) -> None:
        table, tables = self._table(name), self._set_of[name]
        expected = (table.num_rows, tables.group.dim)
        if tuple(weight.shape) != expected or not weight.is_floating_point():
            raise ValueError(
                f"table {name!r}: weight is {weight.dtype} {list(weight.shape)}, expected {list(expected)}"
            )
        maintenance.flush(tables.group)
        tables.set_part(table, "weight", weight.detach())
        maintenance.reload(tables.group)

    def _table(self, name: str) -> Table:
        for table in self.tables:
            if table.name == name:
                return table
        raise ValueError(f"no table {name!r}: there are {', '.join(table.name for table in self.tables)}")

    def _pin(self, name: str, ids: Tensor) -> None:
        table, tables = self._table(name), self._set_of[name]
        ids = torch.as_tensor(ids, dtype=torch.int64).flatten()
        if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= table.num_rows):
            raise ValueError(
                f"pin: ids from {int(ids.min())} to {int(ids.max())}, table {name!r} has 0 to {table.num_rows - 1}"
            )
        maintenance.pin(tables.group, on_device(ids + tables.first_row[name], self.device))

    def unpin(self) -> None:
        """Let all pinned rows go again."""
        for group in self.groups:
            maintenance.unpin(group)

    def row_state(self, name: str) -> dict[str, Tensor]:
        """The optimizer state of a table: "step", and a view of each part of the records' state in the store.

        With a `row_order` it is a copy, as is the `state_dict`.
        `optimizer.state_dict()` has it for all tables.
        """
        self.flush()
        table, tables = self._table(name), self._set_of[name]
        parts = {part.name: tables.part(table, part.name).cpu() for part in tables.group.store.layout.state}
        return {"step": torch.tensor(float(tables.group.steps)), **parts}

    def load_row_state(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Set what `row_state` answers. Tables of one dim count their steps together."""
        table, tables = self._table(name), self._set_of[name]
        fields = [part.name for part in tables.group.store.layout.state]
        if set(state) != {"step", *fields}:
            raise ValueError(f"state of table {name!r} has {sorted(state)}, expected {sorted(['step', *fields])}")
        maintenance.flush(tables.group)
        for part in fields:
            tables.set_part(table, part, state[part])
        tables.group.steps = int(state["step"])
        maintenance.reload(tables.group)

    # -- nn.Module ------------------------------------------------------------------------------------------------

    def _state_key(self, table: Table) -> str:
        return f"{table.name}.weight"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.flush()
        for table in self.tables:
            destination[prefix + self._state_key(table)] = self._set_of[table.name].part(table, "weight")

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
                self._load_weight(table.name, state_dict[key])
            except ValueError as error:
                error_msgs.append(str(error))
        if strict:
            unexpected_keys.extend(key for key in state_dict if key.startswith(prefix) and key not in keys)

    def _apply(self, fn: Any, recurse: bool = True) -> "CachedModule":
        wanted = fn(self._anchor.detach())
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
        records = [tables.group.store.view(0, tables.group.store.num_rows) for tables in self._sets]
        steps = [tables.group.steps for tables in self._sets]
        return _rebuild, (type(self), self._arguments(), records, steps, self.training, self._frozen)

    def _arguments(self) -> dict[str, Any]:
        """What the constructor takes to make another one like this."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        rows = sum(table.num_rows for table in self.tables)
        slots = sum(group.num_slots for group in self.groups)
        optimizer = type(self.optimizer).__name__ if self.optimizer else None
        return (
            f"{len(self.tables)} table(s), {rows:,} rows, mode={self.mode}, cache={slots:,} rows on {self.device}, "
            f"index={self.index}, optimizer={optimizer}"
        )


def _rebuild(
    kind: type[CachedModule],
    arguments: dict[str, Any],
    records: list[Tensor],
    steps: list[int],
    training: bool,
    frozen: bool,
) -> CachedModule:
    module = kind(**arguments)
    module._frozen = frozen
    for group, copy, count in zip(module.groups, records, steps, strict=True):
        group.store.view(0, group.store.num_rows).copy_(copy)
        group.steps = count
    return module.train(training)
