"""One table without pooling: a drop-in for `torch.nn.Embedding` whose rows live in host memory."""

from typing import Any

import torch
from torch import Tensor

from hotrows.cache.policies import Policy
from hotrows.nn.table_lookups import TableUse
from hotrows.nn.table_module import TableModule, check_padding_idx, check_pretrained, check_torch_arguments
from hotrows.optim import RowOptimizer
from hotrows.stores import StoreSettings
from hotrows.table import Init


class Embedding(TableModule):
    """`torch.nn.Embedding` with its rows in host memory and a cache of them on the device.

    It takes the arguments of `torch.nn.Embedding` first, and is called like it; keyword arguments say where the rows
    live. Rows are updated in the backward pass by `optimizer`, as with sparse gradients. The result is, bit for bit,
    that of having all rows on the device.

    Args:
        padding_idx: the row of this id takes no gradient. It starts at zero, and may be set with `load_weight`.
        max_norm, scale_grad_by_freq: must keep their defaults. The first changes rows outside the optimizer, and the
            second is not defined for sparse gradients in PyTorch either.
        sparse: accepted and ignored. Updates are those of sparse gradients.
        dtype: float32.
        cache: rows on the device, as a number (20_000), a share ("1.5%") or memory ("2GB").
        optimizer: a row optimizer, such as `hotrows.optim.SGD(lr=0.1)`; None for rows that are only read.
        policy: decides which rows stay in the cache, a name in `hotrows.POLICIES` or a `Policy`.
        index: "auto", "direct", "hash" or "set-associative".
        store: where all rows live: "ram", "device", `hotrows.stores.Ram()`, `hotrows.stores.Device()`, or an object
            that opens your own store, see `hotrows.stores.StoreSettings`.
        init: initial values, see `hotrows.Table`; "normal" as `torch.nn.Embedding` has them.
        seed: of the initial values.

    Example::

        items = hotrows.Embedding(1_000_000, 64, padding_idx=0, cache=20_000, optimizer=hotrows.optim.Adam(lr=1e-3))
        out = items(torch.tensor([[5, 7, 0], [9, 0, 0]]))  # [2, 3, 64]
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        cache: int | str = "1.5%",
        optimizer: RowOptimizer | None = None,
        policy: str | Policy = "lookahead",
        index: str = "auto",
        store: str | StoreSettings = "ram",
        init: Init = "normal",
        seed: int = 0,
    ) -> None:
        check_torch_arguments(max_norm, scale_grad_by_freq, dtype)
        super().__init__(
            num_embeddings, embedding_dim, TableUse(False, padding_idx=check_padding_idx(padding_idx, num_embeddings)),
            _weight, cache, optimizer, policy, index, store, device, init, seed,
        )  # fmt: skip
        self._is_frozen = _freeze

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, **arguments: Any) -> "Embedding":
        """A module with rows from a [num_embeddings, embedding_dim] tensor. Frozen rows take no optimizer."""
        num_rows, dim = check_pretrained(embeddings, freeze, arguments.get("optimizer"))
        return cls(num_rows, dim, _weight=embeddings, _freeze=freeze, **arguments)

    def forward(self, input: Tensor) -> Tensor:
        """The row of each id, [*, embedding_dim] for int64 or int32 ids of any shape [*]."""
        rows = self._look_up(self._calls.of_ids(input))
        return rows.view(*input.shape, self.embedding_dim)

    def to_embedding(self) -> torch.nn.Embedding:
        """The same rows as a plain PyTorch module on the CPU."""
        return torch.nn.Embedding(
            self.num_embeddings, self.embedding_dim, padding_idx=self.padding_idx, _weight=self.weight()
        )

    def _arguments(self) -> dict[str, Any]:
        return {
            "num_embeddings": self.num_embeddings,
            "embedding_dim": self.embedding_dim,
            "padding_idx": self.padding_idx,
            "device": str(self.device),
            "optimizer": self.optimizer,
            **self._kept,
        }
