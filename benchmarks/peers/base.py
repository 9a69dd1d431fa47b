"""The interface of a peer, and its counts."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class PeerMissing(Exception):  # noqa: N818 (it is not an error that a peer is not installed)
    """The peer cannot be used on this machine. The message says why."""


class Peer(Protocol):
    """Embedding tables with their optimizer, one id per feature. B samples, F features, D dim.

    For every batch, the loop calls `prefetch` with the ids of the next batch, `embed`, the model, backward and `step`.
    """

    name: str

    def embed(self, ids: Tensor) -> Tensor:
        """The vectors of int64 ids [B, F], float32 [B, F, D]. A backward pass must follow."""

    def prefetch(self, ids: Tensor) -> None:
        """Give the peer the ids of the batch after the next one. A peer without prefetching ignores them."""

    def step(self) -> None:
        """Update the rows, unless the backward pass has done that."""

    def count(self, on: bool) -> None:
        """Start counting from zero, or stop. Counting may wait for the device, so it must not be on during timing."""

    def figures(self) -> dict[str, float]:
        """The counts; empty if the peer has nothing to count."""

    def weight(self, table: int) -> Tensor:
        """A whole table after the last step, [rows, D] on the CPU."""

    def load_weight(self, table: int, weight: Tensor) -> None:
        """Replace a table, before the first batch."""

    def close(self) -> None:
        """Free the memory on device and host. The peer cannot be used afterwards."""


@dataclass
class Counts:
    """Counts over batches, as in `hotrows.cache.stats`: rows are counted once per batch."""

    batches: int = 0
    lookups: int = 0
    unique: int = 0
    misses: int = 0
    bytes_in: int = 0  # host → device
    bytes_out: int = 0  # device → host

    def figures(self) -> dict[str, float]:
        found = {name: float(value) for name, value in vars(self).items()}
        if self.unique:
            found["hit_rate"] = 1 - self.misses / self.unique
        return found
