"""One table: a drop-in for `torch.nn.EmbeddingBag` whose rows live in host memory."""

from typing import Any

import torch
from torch import Tensor

from hotrows.batch import to_tensor
from hotrows.cache.policies import Policy
from hotrows.nn.table_lookups import TableUse
from hotrows.nn.table_module import TableModule, check_padding_idx, check_pretrained, check_torch_arguments
from hotrows.optim import RowOptimizer
from hotrows.stores import StoreSettings
from hotrows.table import Init


class EmbeddingBag(TableModule):
    """`torch.nn.EmbeddingBag` with its rows in host memory and a cache of them on the device.

    It takes the arguments of `torch.nn.EmbeddingBag` first, and is called like it; keyword arguments say where the
    rows live. Rows are updated in the backward pass by `optimizer`. The result is, bit for bit, that of having all
    rows on the device.

    Args:
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
        init: initial values, see `hotrows.Table`.
        seed: of the initial values.

    Example::

        bag = hotrows.EmbeddingBag(1_000_000, 64, mode="sum", cache=20_000, optimizer=hotrows.optim.Adagrad(lr=0.05))
        out = bag(torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2]))  # [2, 64]
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        cache: int | str = "1.5%",
        optimizer: RowOptimizer | None = None,
        policy: str | Policy = "lookahead",
        index: str = "auto",
        store: str | StoreSettings = "ram",
        init: Init = "uniform",
        seed: int = 0,
    ) -> None:
        check_torch_arguments(max_norm, scale_grad_by_freq, dtype)
        padding_idx = check_padding_idx(padding_idx, num_embeddings)
        super().__init__(
            num_embeddings, embedding_dim, TableUse(True, mode, padding_idx, include_last_offset), _weight, cache,
            optimizer, policy, index, store, device, init, seed,
        )  # fmt: skip

    @property
    def include_last_offset(self) -> bool:
        return self.use.include_last_offset

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, **arguments: Any) -> "EmbeddingBag":
        """A bag with rows from a [num_embeddings, embedding_dim] tensor. Frozen rows take no optimizer."""
        num_rows, dim = check_pretrained(embeddings, freeze, arguments.get("optimizer"))
        bag = cls(num_rows, dim, _weight=embeddings, **arguments)
        bag._is_frozen = freeze
        return bag

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Pooled rows, [bags, embedding_dim].

        Args:
            input: int64 or int32 ids, [N] with offsets, or [B, L] for bags of one length.
            offsets: where each bag begins, [bags] (with `include_last_offset`, also where the last one ends).
            per_sample_weights: one weight per id, with mode "sum".
        """
        lookups = self._calls.of_bags(input, offsets)
        if per_sample_weights is not None:
            if self.mode != "sum":
                raise ValueError(f"per_sample_weights go with mode 'sum', this bag has mode {self.mode!r}")
            if not isinstance(per_sample_weights, Tensor):
                raise ValueError(
                    f"per_sample_weights are a {type(per_sample_weights).__name__}, give a tensor"
                    f"{to_tensor(per_sample_weights, 'per_sample_weights')}"
                )
            if per_sample_weights.shape != input.shape:
                raise ValueError(
                    f"per_sample_weights are {list(per_sample_weights.shape)}, input is {list(input.shape)}: give one "
                    f"weight per id"
                )
            lookups.weights = per_sample_weights.to(self.device, torch.float32).flatten()
        return self._look_up(lookups)

    def to_embedding_bag(self) -> torch.nn.EmbeddingBag:
        """The same rows as a plain PyTorch module on the CPU."""
        return torch.nn.EmbeddingBag.from_pretrained(
            self.weight(), freeze=False, mode=self.mode, include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )  # fmt: skip

    def _arguments(self) -> dict[str, Any]:
        return {
            "num_embeddings": self.num_embeddings,
            "embedding_dim": self.embedding_dim,
            "mode": self.mode,
            "include_last_offset": self.include_last_offset,
            "padding_idx": self.padding_idx,
            "device": str(self.device),
            "optimizer": self.optimizer,
            **self._kept,
        }
