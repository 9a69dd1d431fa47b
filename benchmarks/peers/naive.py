"""Plain PyTorch: the tables and their optimizer on the CPU, the model on the GPU.

It does what `nn.EmbeddingBag(sparse=True)` with `torch.optim` does, with pinned memory for the vectors and their
gradients: one gather by all cores, one copy in each direction, and torch's own sparse update.
"""

import torch
from torch import Tensor

from .base import Counts
from .host_rows import HostRows, first_rows


class Naive:
    """Tables on the CPU."""

    name = "naive: tables on CPU, model on GPU"

    def __init__(self, sizes: list[int], dim: int, optimizer: str, lr: float, device: torch.device) -> None:
        self.sizes, self.dim, self.device = sizes, dim, device
        self._memory = [HostRows(sum(sizes), dim, device)]
        self._weight = torch.nn.Parameter(self._memory[0].values)
        self._first_rows = first_rows(sizes, device)
        self._optimizer: torch.optim.Optimizer
        if optimizer == "adam":
            self._optimizer = torch.optim.SparseAdam([self._weight], lr=lr)
            self._optimizer.state[self._weight] = self._adam_state()
        else:
            self._optimizer = torch.optim.SGD([self._weight], lr=lr)
        self._buffers: dict[str, Tensor] = {}
        self._rows: Tensor | None = None
        self._embedded: Tensor | None = None
        self._counting = False
        self._counts = Counts()

    def embed(self, ids: Tensor) -> Tensor:
        rows = (ids + self._first_rows).view(-1)
        on_host = self._buffer("rows", rows)
        on_host.copy_(rows)  # the host waits here, because it needs the rows
        vectors = self._buffer("vectors", torch.empty(rows.numel(), self.dim, device="meta"))
        torch.index_select(self._weight.detach(), 0, on_host, out=vectors)
        embedded = vectors.to(self.device, non_blocking=True, copy=True).view(*ids.shape, self.dim)
        self._rows, self._embedded = on_host, embedded.requires_grad_()
        if self._counting:
            num_bytes = rows.numel() * self.dim * 4
            self._counts.batches += 1
            self._counts.lookups += rows.numel()
            self._counts.unique += int(rows.unique().numel())
            self._counts.bytes_in += num_bytes
            self._counts.bytes_out += num_bytes
        return self._embedded

    def prefetch(self, ids: Tensor) -> None:
        pass

    def step(self) -> None:
        assert self._rows is not None
        assert self._embedded is not None
        assert self._embedded.grad is not None, "step() comes after the backward"
        grad = self._embedded.grad.view(-1, self.dim)
        on_host = self._buffer("gradients", grad)
        on_host.copy_(grad)
        # This gradient is like that of nn.EmbeddingBag(sparse=True): a row that is looked up twice is in it twice.
        with torch.sparse.check_sparse_tensor_invariants(False):
            self._weight.grad = torch.sparse_coo_tensor(self._rows.unsqueeze(0), on_host, self._weight.shape)
            self._optimizer.step()
        self._weight.grad = self._rows = self._embedded = None

    def count(self, on: bool) -> None:
        self._counting = on
        if on:
            self._counts = Counts()

    def figures(self) -> dict[str, float]:
        found = self._counts.figures()
        found.pop("hit_rate", None)  # there is no cache
        found.pop("misses")
        return found

    def weight(self, table: int) -> Tensor:
        return self._table(table).clone()

    def load_weight(self, table: int, weight: Tensor) -> None:
        self._table(table).copy_(weight)

    def close(self) -> None:
        self._optimizer.state.clear()
        self._weight = torch.nn.Parameter(torch.empty(0))
        self._optimizer.param_groups.clear()
        self._rows = self._embedded = None
        self._buffers.clear()
        for memory in self._memory:
            memory.close()

    def _table(self, table: int) -> Tensor:
        start = sum(self.sizes[:table])
        return self._weight.detach()[start : start + self.sizes[table]]

    def _adam_state(self) -> dict[str, Tensor | int]:
        """The state that SparseAdam would allocate in its first step, in memory that is touched before the timing."""
        state: dict[str, Tensor | int] = {"step": 0}
        for name in ("exp_avg", "exp_avg_sq"):
            self._memory.append(HostRows(*self._weight.shape, self.device))
            state[name] = self._memory[-1].values.zero_()
        return state

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        """Host memory of the shape of `like` that every batch reuses. It is pinned if there is a GPU."""
        found = self._buffers.get(name)
        if found is None or found.shape != like.shape:
            found = torch.empty(like.shape, dtype=like.dtype, pin_memory=self.device.type == "cuda")
            self._buffers[name] = found
        return found


def make(
    sizes: list[int],
    dim: int,
    cache_ratio: float,
    optimizer: str,
    lr: float,
    batch_size: int,
    device: torch.device,
    frequencies: Tensor | None,
) -> Naive:
    return Naive(sizes, dim, optimizer, lr, device)
