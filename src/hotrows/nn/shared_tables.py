"""Tables of several modules with shared caches: those of one dim have one cache, one plan and one optimizer step."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hotrows.cache.policies import Policy
from hotrows.nn.base import CachedModule
from hotrows.nn.lookups import Lookups, several_calls
from hotrows.nn.table_lookups import TableLookups, TableUse
from hotrows.optim import RowOptimizer
from hotrows.stores import StoreSettings
from hotrows.table import Table


class SharedTables(CachedModule):
    """Owns the tables and caches of modules such as those of a `ModuleList`, and is called through them.

    `hotrows.convert` makes it. It is no part of the model: its tables are saved and loaded with the modules.

    Args:
        uses: how the module of each table looks rows up, by the table's name.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        uses: Mapping[str, TableUse],
        *,
        cache: int | str = "1.5%",
        optimizer: RowOptimizer | None = None,
        policy: str | Policy = "lookahead",
        index: str = "auto",
        store: str | StoreSettings = "ram",
        device: torch.device | str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(tables, None, "sum", cache, optimizer, policy, index, store, device, seed)
        self.uses = dict(uses)
        self._kept: dict[str, Any] = {
            "uses": self.uses, "cache": cache, "policy": policy, "index": index, "store": store, "seed": seed,
        }  # fmt: skip
        self._calls = [
            {
                table.name: TableLookups(
                    self.uses[table.name], table.name, each.first_row[table.name], table.num_rows, self.device
                )
                for table in each.tables
            }
            for each in self._sets
        ]

    def _lookups(self, ids: Any) -> list[Lookups]:
        """The lookups of a batch.

        Args:
            ids: what the module of each table is called with, by the table's name, in the order of the tables, or as
                the columns of a tensor [B, tables]. A list for a table is several calls, and None is no call.
        """
        given = self._by_table(ids)
        return [self._lookups_of(calls, given) for calls in self._calls]

    def _by_table(self, ids: Any) -> Mapping[str, Any]:
        names = [table.name for table in self.tables]
        if isinstance(ids, Mapping):
            return ids
        if isinstance(ids, Tensor) and ids.dim() == 2 and ids.shape[1] == len(names):
            return dict(zip(names, ids.unbind(1), strict=True))
        if isinstance(ids, list | tuple) and len(ids) == len(names):
            return dict(zip(names, ids, strict=True))
        given = list(ids.shape) if isinstance(ids, Tensor) else f"a {type(ids).__name__}"
        length = f" of {len(ids)}" if isinstance(ids, list | tuple) else ""
        raise ValueError(
            f"the ids of {len(names)} tables that share a cache are {given}{length}: give a list with what the module "
            f"of each is called with, or a tensor [B, {len(names)}]"
        )

    def _lookups_of(self, calls: Mapping[str, TableLookups], given: Mapping[str, Any]) -> Lookups:
        """The lookups in the tables of one dim."""
        found: list[Lookups] = []
        for name, table in calls.items():
            of_table = given.get(name)
            for call in of_table if isinstance(of_table, list) else [of_table]:
                if call is not None:
                    found.append(table.announced(call))
        if not found:
            found.append(next(iter(calls.values())).announced(torch.empty(0, dtype=torch.int64, device="cpu")))
        return several_calls(found)

    def _arguments(self) -> dict[str, Any]:
        return {"tables": self.tables, "device": str(self.device), "optimizer": self.optimizer, **self._kept}
