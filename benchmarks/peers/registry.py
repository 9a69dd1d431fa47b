"""All peers by name, and the reasons why a peer cannot run."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import cached_embedding, fbgemm, naive
from .base import Peer, PeerMissing

OPTIMIZERS = ("sgd", "adam")
SLOT_STATE = "CachedEmbedding keeps optimizer state per slot of its cache, not per row: wrong for Adam"


@dataclass(frozen=True)
class Entry:
    """A peer that can be made.

    Args:
        name: a name for people.
        build: the peer's own function, with the arguments of `make`.
        find: imports what the peer needs, or raises PeerMissing.
        refuses: the reason why the peer cannot be used with an optimizer, by optimizer.
    """

    name: str
    build: Callable[..., Peer]
    find: Callable[[], Any] | None = None
    refuses: tuple[tuple[str, str], ...] = ()

    def missing(self, optimizer: str, device: torch.device | str) -> str | None:
        """Why the peer cannot be used; None if it can."""
        if optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer is {optimizer!r}: known are {', '.join(OPTIMIZERS)}")
        for refused, reason in self.refuses:
            if optimizer == refused:
                return reason
        if self.find is None:
            return None
        try:
            self.find()
        except PeerMissing as missing:
            return str(missing)
        return None if torch.device(device).type == "cuda" else "it needs a CUDA device"

    def make(
        self,
        sizes: list[int],
        dim: int,
        cache_ratio: float,
        optimizer: str,
        lr: float,
        batch_size: int,
        device: torch.device | str,
        frequencies: Tensor | None = None,
    ) -> Peer:
        """Make the peer. Its rows are filled with small random numbers.

        Args:
            sizes: rows of each table.
            cache_ratio: the share of all rows that the cache may hold.
            optimizer: the optimizer of the rows, "sgd" or "adam".
            frequencies: how often each row is looked up, table after table. Not every peer uses them.
        """
        reason = self.missing(optimizer, device)
        if reason is not None:
            raise PeerMissing(f"{self.name}: {reason}")
        where = torch.device(device)
        if where.type == "cuda" and where.index is None:
            where = torch.device("cuda", torch.cuda.current_device())
        return self.build(sizes, dim, cache_ratio, optimizer, lr, batch_size, where, frequencies)


PEERS: dict[str, Entry] = {
    **{key: Entry(mode.name, partial(fbgemm.make, mode), fbgemm.find) for key, mode in fbgemm.MODES.items()},
    "cached-embedding": Entry(
        "CachedEmbedding, dense gradient", cached_embedding.make, cached_embedding.find, (("adam", SLOT_STATE),)
    ),
    "cached-embedding-sparse": Entry(
        "CachedEmbedding, sparse gradient",
        partial(cached_embedding.make, sparse=True),
        cached_embedding.find,
        (("adam", SLOT_STATE),),
    ),
    "naive": Entry(naive.Naive.name, naive.make),
}
