"""The face that every peer has, and what it counts."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class PeerMissing(Exception):  # noqa: N818 (nothing went wrong: the peer is not here)
    """The peer cannot be used here; the text says why."""


class Peer(Protocol):
    """Embedding tables with their optimizer, one id per feature. B samples, F features, D dim.

    The loop, for every batch: `prefetch(ids of the next one)`, `embed`, the model, backward, `step`.
    """

    name: str

    def embed(self, ids: Tensor) -> Tensor:
        """Vectors of int64 ids [B, F] → float32 [B, F, D], to be followed by a backward."""

    def prefetch(self, ids: Tensor) -> None:
        """The ids of the batch after the one that is embedded next; nothing happens where the peer cannot use them."""

    def step(self) -> None:
        """Update the rows, where the backward has not done it."""

    def count(self, on: bool) -> None:
        """Start counting from zero, or stop. Counting may wait for the device: not while time is taken."""

    def figures(self) -> dict[str, float]:
        """What was counted; empty where there is nothing to count."""

    def weight(self, table: int) -> Tensor:
        """A whole table as it is after the last step, [rows, D] on the CPU."""

    def load_weight(self, table: int, weight: Tensor) -> None:
        """Replace a table, before the first batch."""

    def close(self) -> None:
        """Free the memory of device and host; the peer cannot be used afterwards."""


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
