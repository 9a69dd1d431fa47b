"""Many tables as one module: the tables of one dim share a cache, a plan and a kernel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotrows.batch import Jagged, to_tensor
from hotrows.cache.planning.id_columns import IdColumns
from hotrows.cache.policies import Policy
from hotrows.cache.transfer import Transfer
from hotrows.loop.ticket import CheckedRows
from hotrows.nn.base import CachedModule
from hotrows.nn.lookups import BAD_OFFSETS, Lookups, on_device, rows_of, with_offsets_checked
from hotrows.nn.table_set import Ids, TableSet
from hotrows.nn.unique_ids import Deduplicated, split_by_table
from hotrows.ops.unique import unique_rows
from hotrows.optim import RowOptimizer
from hotrows.runtime.cuda_private import graph_break
from hotrows.stores import StoreSettings
from hotrows.stores.memory_checks import available_host_memory, require_memory
from hotrows.stores.row_order import RowOrder
from hotrows.table import Table

_ID_TYPES = (torch.int64, torch.int32)


class EmbeddingBagCollection(CachedModule):
    """Many embedding tables whose rows live in host memory, with one cache of them on the device.

    Called with ids [B, F] (one id per bag) or a `Jagged` (several), it returns [B, F, dim]. If the tables have
    different dims, it returns a tuple with one [B, dim] for each feature. Features are in the order of the tables.

    Args:
        tables: the tables. Tables of one dim share a cache.
        dim: of the tables that do not set their own.
        mode: "sum", "mean" or "max".
        cache: rows on the device, as a number (500_000), a share ("1.5%") or memory ("2GB").
        optimizer: a row optimizer, such as `hotrows.optim.SGD(lr=0.1)`; None for rows that are only read.
        policy: decides which rows stay in the cache, a name in `hotrows.POLICIES` or a `Policy`.
        index: "auto", "direct", "hash" or "set-associative".
        store: where all rows live. "ram" or `hotrows.stores.Ram()`: host memory. "device" or
            `hotrows.stores.Device()`: the memory of the device, without a cache. An object of your own opens your own
            store, see `hotrows.stores.StoreSettings`.
        device: where the cache is and rows are trained; None for PyTorch's default device.
        seed: of the initial values.
        row_order: the order of rows in the store, such as `hotrows.RowOrder(counts)` from hot to cold; None for table
            after table. The result does not depend on it. It is ignored with store="device".
        transfer: how rows move, such as `hotrows.BlockTransmitter()`; None lets a kernel read and write the store
            itself where it can address the store.

    Example::

        bags = hotrows.EmbeddingBagCollection(
            [hotrows.Table("C1", 1460), hotrows.Table("C2", 583)], dim=128,
            cache="1.5%", optimizer=hotrows.optim.SGD(lr=0.1))
        out = bags(torch.tensor([[0, 582], [1459, 7]]))  # [2, 2, 128]
    """

    def __init__(
        self,
        tables: Sequence[Table],
        dim: int | None = None,
        *,
        mode: str = "sum",
        cache: int | str = "1.5%",
        optimizer: RowOptimizer | None = None,
        policy: str | Policy = "lookahead",
        index: str = "auto",
        store: str | StoreSettings = "ram",
        device: torch.device | str | None = None,
        seed: int = 0,
        row_order: RowOrder | None = None,
        transfer: Transfer | None = None,
    ) -> None:
        super().__init__(tables, dim, mode, cache, optimizer, policy, index, store, device, seed, row_order, transfer)
        self._kept: dict[str, Any] = {
            "dim": dim, "mode": mode, "cache": cache, "policy": policy, "index": index, "store": store, "seed": seed,
            "row_order": row_order, "transfer": transfer,
        }  # fmt: skip
        pairs = [(name, table) for table in self.tables for name in table.feature_names]
        self.features = tuple(name for name, _ in pairs)
        self._table_of = [table for _, table in pairs]
        self._named = _Named(self.features, self._table_of)
        self._parts = [_Features(tables, self._named, self.device) for tables in self._sets]
        self._positions = self._find_positions()

    @graph_break
    def forward(self, ids: Tensor | Jagged) -> Tensor | tuple[Tensor, ...]:
        """Pooled rows: [B, F, dim], or one [B, dim] per feature where dims differ."""
        pooled = self._pooled(self._lookups(ids))
        if isinstance(ids, Jagged):
            num_features, num_samples = ids.lengths.shape
            by_sample = [rows.view(num_features, num_samples, rows.shape[1]).transpose(0, 1) for rows in pooled]
            out = [
                rows if part.columns is None else rows[:, part.columns]
                for rows, part in zip(by_sample, self._parts, strict=True)
            ]
        else:
            out = [
                rows.view(ids.shape[0], part.num, rows.shape[1]) for rows, part in zip(pooled, self._parts, strict=True)
            ]
        if len(out) == 1:
            return self._forward_pass.output(out[0])
        return tuple(self._forward_pass.output(out[part][:, position]) for part, position in self._positions)

    def weight(self, name: str) -> Tensor:
        """A whole table as a CPU tensor, [num_rows, dim]."""
        table, tables = self._find(name)
        return tables.weight(table)

    def load_weight(self, name: str, weight: Tensor) -> None:
        """Set all rows of a table, such as pretrained ones."""
        table, tables = self._find(name)
        tables.load_weight(table, weight)

    def pin(self, name: str, ids: Ids) -> None:
        """Bring the rows of these ids of a table into the cache, where they stay until `unpin`.

        Args:
            ids: a tensor, a NumPy array or a list of whole numbers.
        """
        table, tables = self._find(name)
        tables.pin(table, ids)

    def deduplicate(self, ids: Tensor | Jagged | None = None) -> dict[str, Deduplicated]:
        """The unique ids of each table in a batch, and the position of each lookup's id among them.

        Without ids, it is the current batch of `hotrows.lookahead`, whose unique ids planning has found already.
        """
        if ids is not None:
            found = [unique_rows(part.make_checked()) for part in self._lookups(ids)]
            shape = None if isinstance(ids, Jagged) else ids.shape
        elif self.current:
            found = [ticket.unique_by_table for ticket in self.current]
            has_one_id_per_bag = len(self.current[0].ids) == 1
            shape = self.current[0].ids[0].shape if has_one_id_per_bag else None
        else:
            raise ValueError("there is no current batch: give the ids of one, or call this within lookahead()")
        by_table: dict[str, Deduplicated] = {}
        for tables, unique in zip(self._sets, found, strict=True):
            by_table |= split_by_table(tables, unique, shape)
        return {table.name: by_table[table.name] for table in self.tables}

    def to_embedding_bags(self) -> dict[str, torch.nn.EmbeddingBag]:
        """The same tables as plain PyTorch modules on the CPU, if the host memory is large enough."""
        num_bytes = sum(table.num_rows * self.dims[table.name] * 4 for table in self.tables)
        require_memory("copies of all tables", num_bytes, available_host_memory(), "host memory", "use weight(name)")
        return {
            table.name: torch.nn.EmbeddingBag.from_pretrained(self.weight(table.name), freeze=False, mode=self.mode)
            for table in self.tables
        }

    def _lookups(self, ids: Any) -> list[Lookups]:
        if not isinstance(ids, Tensor):
            if isinstance(ids, Jagged):
                return self._jagged(ids)
            raise ValueError(
                f"ids are a {type(ids).__name__}, give a hotrows.Jagged or an int64 [B, F] tensor"
                f"{to_tensor(ids, 'ids')}"
            )
        shape = ids.shape
        if len(shape) != 2 or shape[1] != len(self.features):
            raise ValueError(f"ids are {list(ids.shape)}, give [B, {len(self.features)}]: one column per feature")
        if ids.dtype not in _ID_TYPES:
            raise ValueError(f"ids are {ids.dtype}, give int64 (or int32)")
        return [self._single(ids, part) for part in self._parts]

    # Lookups outlive the loop for a while. Their functions must not refer to the module, because they would keep its
    # cache and its store alive.

    def _single(self, ids: Tensor, part: "_Features") -> Lookups:
        device = self.device

        def make() -> CheckedRows:
            num_samples = ids.shape[0]
            first_row, num_rows = (each.repeat(num_samples) for each in (part.first_row_of_all, part.num_rows_of_all))
            elsewhere = None if part.others is None else part.others.repeat(num_samples)
            checked = rows_of(on_device(ids, device).long().flatten(), first_row, num_rows, elsewhere=elsewhere)
            if part.columns is not None:
                checked.rows = checked.rows.view(ids.shape)[:, part.columns].flatten()
            return checked

        return Lookups(make, part.describe, (ids,), columns=part.id_columns)

    def _jagged(self, ids: Jagged) -> list[Lookups]:
        num_features = ids.lengths.shape[0]
        if num_features != len(self.features):
            raise ValueError(f"lengths are {list(ids.lengths.shape)}, give [{len(self.features)}, B]")
        if ids.weights is not None and self.mode != "sum":
            raise ValueError(f"weights go with mode 'sum', this collection has mode {self.mode!r}")
        lengths = on_device(ids.lengths, self.device).flatten()
        offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int32, device=self.device)
        torch.cumsum(lengths, 0, dtype=torch.int32, out=offsets[1:])
        lengths_checked = ids.lengths.device.type == "cpu"  # by Jagged itself
        weights = None if ids.weights is None else ids.weights.to(self.device, torch.float32)
        return [
            Lookups(self._rows_of_jagged(ids, offsets, part, lengths_checked), self._describe_jagged(ids),
                    key=(ids.values, ids.lengths), offsets=offsets, weights=weights)
            for part in self._parts
        ]  # fmt: skip

    def _rows_of_jagged(
        self, ids: Jagged, offsets: Tensor, part: "_Features", lengths_checked: bool
    ) -> Callable[[], CheckedRows]:
        num_features, num_samples = ids.lengths.shape
        device = self.device

        def make() -> CheckedRows:
            values = on_device(ids.values, device).long()
            position = torch.arange(values.numel(), dtype=torch.int32, device=device)
            ends = offsets[num_samples :: max(num_samples, 1)] if num_samples else offsets.new_zeros(num_features)
            feature = torch.searchsorted(ends.contiguous(), position, right=True).clamp_(max=num_features - 1)
            elsewhere = None if part.others is None else part.others[feature]
            first_row, num_rows = part.first_row_of_all[feature], part.num_rows_of_all[feature]
            rows = rows_of(values, first_row, num_rows, elsewhere=elsewhere)
            return rows if lengths_checked else with_offsets_checked(rows, offsets, part.is_first)

        return make

    def _describe_jagged(self, ids: Jagged) -> Callable[[list[int]], str]:
        named = self._named

        def describe(found: list[int]) -> str:
            what, position, value = found
            if what == BAD_OFFSETS:
                num_values = ids.values.numel()
                return f"Jagged: lengths must be 0 or more and add up to the {num_values} values; they give {value}"
            ends = ids.lengths.sum(1).cumsum(0).cpu()
            feature = int(torch.searchsorted(ends, position, right=True))
            return named.message(named.features[feature], f"position {position} of values", value)

        return describe

    def _find_positions(self) -> list[tuple[int, int]]:
        """For every feature, the number of its part and its position among the features of that part."""
        found = {
            name: (number, position)
            for number, part in enumerate(self._parts)
            for position, name in enumerate(part.features)
        }
        return [found[name] for name in self.features]

    def _arguments(self) -> dict[str, Any]:
        return {"tables": self.tables, "device": str(self.device), "optimizer": self.optimizer, **self._kept}


@dataclass(frozen=True)
class _Named:
    """Features and their tables, for the error message about a bad id."""

    features: Sequence[str]
    table_of: Sequence[Table]

    def message(self, feature: str, where: str, value: int) -> str:
        table = self.table_of[self.features.index(feature)]
        return (
            f"feature {feature!r}, {where}: id {value} is not in table {table.name!r}, whose ids go from 0 to "
            f"{table.num_rows - 1}; nothing of this batch was used"
        )


class _Features:
    """The features of the tables of one dim: their columns in a batch, and the first rows of their tables."""

    def __init__(self, tables: TableSet, named: _Named, device: torch.device) -> None:
        table_of = named.table_of
        mine = [i for i, table in enumerate(table_of) if table.name in tables.first_row]
        names = [name for table in tables.tables for name in table.feature_names]
        self.features = names
        self.num = len(names)
        self._named = named
        first = [tables.first_row.get(table.name, 0) for table in table_of]
        self.first_row_of_all = torch.tensor(first, device=device)
        self.num_rows_of_all = torch.tensor([table.num_rows for table in table_of], device=device)
        self.first_row = self.first_row_of_all[mine]
        self.num_rows = self.num_rows_of_all[mine]
        self.is_first = 0 in mine
        self.columns: Tensor | None = None
        self.others: Tensor | None = None  # bool, which features are not among these
        if self.num != len(table_of):
            self.columns = torch.tensor(mine, device=device)
            self.others = torch.ones(len(table_of), dtype=torch.bool, device=device)
            self.others[self.columns] = False
        self.id_columns = IdColumns(self.columns, self.first_row, self.num_rows)

    def describe(self, found: list[int]) -> str:
        """The error message for a bad id in ids with one id per bag."""
        _, position, value = found
        sample, column = divmod(position, len(self._named.features))
        return self._named.message(self._named.features[column], f"sample {sample}", value)
