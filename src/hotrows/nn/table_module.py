"""The common part of the modules of one table, `EmbeddingBag` and `Embedding`."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from hotrows.batch import to_tensor
from hotrows.cache.policies import Policy
from hotrows.nn.base import CachedModule
from hotrows.nn.lookups import Lookups, several_calls
from hotrows.nn.table_lookups import TableLookups, TableUse
from hotrows.nn.table_set import Ids, described, has_dense_values
from hotrows.optim import RowOptimizer
from hotrows.stores import StoreSettings
from hotrows.table import Init, Table, whole_number

NAME = "weight"


class TableModule(CachedModule):
    """A module of one table, with caches of its own or those of an owner, which it shares with other modules.

    Args:
        use: how the module looks rows up.
        weight: the values of all rows; None for initial ones.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        use: TableUse,
        weight: Tensor | None,
        cache: int | str,
        optimizer: RowOptimizer | None,
        policy: str | Policy,
        index: str,
        store: str | StoreSettings,
        device: torch.device | str | None,
        init: Init,
        seed: int,
    ) -> None:
        num_embeddings = whole_number(num_embeddings, "num_embeddings")
        embedding_dim = whole_number(embedding_dim, "embedding_dim")
        super().__init__(
            [Table(NAME, num_embeddings, init=init)],
            embedding_dim, use.mode, cache, optimizer, policy, index, store, device, seed,
        )  # fmt: skip
        self._kept: dict[str, Any] = {
            "cache": cache, "policy": policy, "index": index, "store": store, "init": init, "seed": seed,
        }  # fmt: skip
        self._set_use(use)
        if weight is not None:
            self.load_weight(weight)
        elif use.padding_idx is not None:
            zero = torch.zeros(1, self.embedding_dim)
            self._sets[0].set_part(self.tables[0], "weight", zero, first_id=use.padding_idx)

    @classmethod
    def sharing(cls, owner: CachedModule, name: str, use: TableUse) -> Self:
        """A module of one table of another module, which owns the caches and is no part of this one."""
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        table, tables = owner._find(name)
        module.tables, module.dims, module.mode = (table,), {name: owner.dims[name]}, use.mode
        module.__dict__["owner"] = owner  # assigning it would register it as a submodule
        module._kept = {}
        module._share(owner, [tables])
        module._set_use(use)
        return module

    def _set_use(self, use: TableUse) -> None:
        (table,), (tables,) = self.tables, self._sets
        self.use = use
        self.num_embeddings = table.num_rows
        self.embedding_dim = self.dims[table.name]
        self.padding_idx = use.padding_idx
        self._calls = TableLookups(use, table.name, tables.first_row[table.name], table.num_rows, self.device)

    def weight(self) -> Tensor:
        """All rows as a CPU tensor, [num_embeddings, embedding_dim]."""
        return self._sets[0].weight(self.tables[0])

    def load_weight(self, weight: Tensor) -> None:
        """Set all rows."""
        self._sets[0].load_weight(self.tables[0], weight)

    def pin(self, ids: Ids) -> None:
        """Bring the rows of these ids into the cache, where they stay until `unpin`.

        Args:
            ids: a tensor, a NumPy array or a list of whole numbers.
        """
        self._sets[0].pin(self.tables[0], ids)

    def _look_up(self, lookups: Lookups) -> Tensor:
        """Pooled rows, [bags, embedding_dim]."""
        if self.owner is None:
            return self._forward_pass.output(self._pooled([lookups])[0])
        every = [lookups if tables is self._sets[0] else None for tables in self.owner._sets]
        return self._forward_pass.output(self._pooled(every)[0])

    def _lookups(self, ids: Any) -> list[Lookups]:
        calls: Sequence[Any] = ids if isinstance(ids, list) else [ids]
        if not calls:
            raise ValueError("the list of calls is empty: give the ids of each call of the module")
        found = [self._calls.announced(call) for call in calls]
        return found if len(found) == 1 else [several_calls(found)]

    def _state_key(self, table: Table) -> str:
        return NAME

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.owner is None:
            return super().__reduce_ex__(protocol)
        return _share_again, (type(self), self.owner, self.tables[0].name, self.use, self.training, self._is_frozen)


def _share_again(
    kind: type[TableModule], owner: CachedModule, name: str, use: TableUse, training: bool, frozen: bool
) -> TableModule:
    module = kind.sharing(owner, name, use)
    module._is_frozen = frozen
    return module.train(training)


def check_torch_arguments(max_norm: float | None, scale_grad_by_freq: bool, dtype: torch.dtype | None) -> None:
    """Raise for arguments of PyTorch's modules that have no meaning here."""
    if max_norm is not None:
        raise ValueError(
            "max_norm is not supported: it changes rows in the forward pass, outside the optimizer. Use weight "
            "decay (hotrows.optim.SGD(lr, weight_decay)) to keep rows small"
        )
    if scale_grad_by_freq:
        raise ValueError(
            "scale_grad_by_freq is not supported: rows are updated as with sparse gradients, for which PyTorch "
            "does not define it either"
        )
    if dtype not in (None, torch.float32):
        raise ValueError(f"dtype is {dtype}: rows are float32")


def check_padding_idx(padding_idx: int | None, num_embeddings: int) -> int | None:
    """The padding id counted from 0."""
    if padding_idx is None:
        return None
    num_embeddings = whole_number(num_embeddings, "num_embeddings")
    padding_idx = whole_number(padding_idx, "padding_idx", least=None)
    if not -num_embeddings <= padding_idx < num_embeddings:
        raise ValueError(f"padding_idx is {padding_idx}, it must be within the {num_embeddings} rows")
    return padding_idx % num_embeddings


def check_pretrained(embeddings: object, freeze: bool, optimizer: object) -> tuple[int, int]:
    """The shape of the rows that `from_pretrained` is given."""
    if not has_dense_values(embeddings) or embeddings.dim() != 2:
        raise ValueError(
            f"embeddings are {described(embeddings)}, give a tensor [num_embeddings, embedding_dim]"
            f"{to_tensor(embeddings, 'embeddings')}"
        )
    if freeze and optimizer is not None:
        raise ValueError("freeze=True takes no optimizer: pass freeze=False to train the rows")
    return embeddings.shape[0], embeddings.shape[1]
