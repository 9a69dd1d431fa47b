"""One table: a drop-in for `torch.nn.EmbeddingBag` whose rows live in host memory."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotrows.batch import to_tensor
from hotrows.cache.policies import Policy
from hotrows.loop.ticket import CheckedRows
from hotrows.nn.base import CachedModule
from hotrows.nn.lookups import BAD_OFFSETS, Lookups, check_offsets, on_device, rows_of, with_offsets_checked
from hotrows.nn.table_set import Ids, described, has_dense_values
from hotrows.optim import RowOptimizer
from hotrows.runtime.cuda_private import graph_break
from hotrows.stores import StoreSettings
from hotrows.table import Init, Table, whole_number

NAME = "weight"


class EmbeddingBag(CachedModule):
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
        num_embeddings = whole_number(num_embeddings, "num_embeddings")
        embedding_dim = whole_number(embedding_dim, "embedding_dim")
        if padding_idx is not None:
            padding_idx = whole_number(padding_idx, "padding_idx", least=None)
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(f"padding_idx is {padding_idx}, it must be within the {num_embeddings} rows")
            padding_idx %= num_embeddings
        super().__init__(
            [Table(NAME, num_embeddings, init=init)],
            embedding_dim, mode, cache, optimizer, policy, index, store, device, seed,
        )  # fmt: skip
        self._kept: dict[str, Any] = {
            "cache": cache, "policy": policy, "index": index, "store": store, "init": init, "seed": seed,
        }  # fmt: skip
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.include_last_offset = include_last_offset
        self.padding_idx = padding_idx
        if _weight is not None:
            self.load_weight(_weight)
        elif padding_idx is not None:
            self._sets[0].set_part(self.tables[0], "weight", torch.zeros(1, embedding_dim), first_id=padding_idx)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, **arguments: Any) -> "EmbeddingBag":
        """A bag with rows from a [num_embeddings, embedding_dim] tensor. Frozen rows take no optimizer."""
        if not has_dense_values(embeddings) or embeddings.dim() != 2:
            raise ValueError(
                f"embeddings are {described(embeddings)}, give a tensor [num_embeddings, embedding_dim]"
                f"{to_tensor(embeddings, 'embeddings')}"
            )
        if freeze and arguments.get("optimizer") is not None:
            raise ValueError("freeze=True takes no optimizer: pass freeze=False to train the rows")
        bag = cls(embeddings.shape[0], embeddings.shape[1], _weight=embeddings, **arguments)
        bag.requires_grad_(not freeze)
        return bag

    @graph_break
    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Pooled rows, [bags, embedding_dim].

        Args:
            input: int64 or int32 ids, [N] with offsets, or [B, L] for bags of one length.
            offsets: where each bag begins, [bags] (with `include_last_offset`, also where the last one ends).
            per_sample_weights: one weight per id, with mode "sum".
        """
        lookups = self._parse(input, offsets)
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
        return self._forward_pass.output(self._pooled([lookups])[0])

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

    def to_embedding_bag(self) -> torch.nn.EmbeddingBag:
        """The same rows as a plain PyTorch module on the CPU."""
        return torch.nn.EmbeddingBag.from_pretrained(
            self.weight(), freeze=False, mode=self.mode, include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )  # fmt: skip

    def _lookups(self, ids: Any) -> list[Lookups]:
        return [self._parse(*ids) if isinstance(ids, tuple) else self._parse(ids, None, ids_alone=True)]

    def _parse(self, input: Tensor, offsets: Tensor | None, *_: Any, ids_alone: bool = False) -> Lookups:
        if not isinstance(input, Tensor) or input.dtype not in (torch.int64, torch.int32):
            given = input.dtype if isinstance(input, Tensor) else f"a {type(input).__name__}"
            raise ValueError(f"input is {given}, give ids as an int64 (or int32) tensor{to_tensor(input, 'ids')}")
        if input.dim() == 2:
            if offsets is not None:
                raise ValueError("offsets go with a one-dimensional input; the bags of a [B, L] input are its rows")
            num_bags, length = input.shape
            if length != 1:
                offsets = torch.arange(num_bags + 1, dtype=torch.int32, device="cpu") * length
            ends = offsets
        elif input.dim() == 1:
            if offsets is None and not ids_alone:
                raise ValueError("a one-dimensional input needs offsets: where each bag begins")
            ends = self._ends(input, offsets)
        else:
            raise ValueError(f"input has {input.dim()} dimensions, give [N] with offsets or [B, L]")
        on_host = offsets is None or offsets.device.type == "cpu"
        ends = None if ends is None else on_device(ends, self.device)

        # Lookups outlive the loop for a while. `make` must not refer to the module, because it would keep the cache and
        # the store alive.
        device, num_rows, padding = self.device, self.num_embeddings, self.padding_idx

        def make() -> CheckedRows:
            ids = on_device(input, device).long().flatten()
            one = torch.zeros(1, dtype=torch.int64, device=device)
            mask = None if padding is None else ids == padding
            checked = rows_of(ids, one, one + num_rows, mask)
            return checked if on_host or ends is None else with_offsets_checked(checked, ends)

        return Lookups(make, partial(_describe, num_rows), key=(input,), offsets=ends)

    def _ends(self, input: Tensor, offsets: Tensor | None) -> Tensor | None:
        """Offsets with the end of the last bag."""
        if offsets is None:
            return None
        if not isinstance(offsets, Tensor):
            raise ValueError(f"offsets are a {type(offsets).__name__}, give a tensor{to_tensor(offsets, 'offsets')}")
        if offsets.dim() != 1 or offsets.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"offsets are {offsets.dtype} {list(offsets.shape)}, give int64 (or int32) [bags]")
        if self.include_last_offset and offsets.numel() == 0:
            raise ValueError("include_last_offset: offsets must have at least one element, the end of the last bag")
        if offsets.device.type == "cpu":
            check_offsets(offsets, input.numel(), "offsets")
            if self.include_last_offset and int(offsets[-1]) != input.numel():
                raise ValueError(
                    f"include_last_offset: the last offset is {int(offsets[-1])}, but there are {input.numel()} ids"
                )
        if self.include_last_offset:
            return offsets.int()
        return torch.cat([offsets, offsets.new_full((1,), input.numel())]).int()

    def _state_key(self, table: Table) -> str:
        return "weight"

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


def _describe(num_rows: int, found: list[int]) -> str:
    what, position, value = found
    if what == BAD_OFFSETS:
        return f"offsets must begin at 0, ascend, and end within the ids given; the last bag ends at {value}"
    return f"input[{position}] is {value}, ids of this bag go from 0 to {num_rows - 1}; nothing of this batch was used"
