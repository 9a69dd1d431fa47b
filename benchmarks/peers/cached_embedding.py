"""Colossal-AI's CachedEmbedding, by the authors of FreqCache: one table behind a cache ordered by frequency.

Its optimizer state belongs to slots instead of rows, so only SGD is correct with it. It calls `torch.cuda.synchronize`
around every part of a step, so each step waits for the device several times.
"""

import contextlib
import gc
import importlib
import io
from types import ModuleType

import torch
from torch import Tensor

from . import packed
from .base import Counts, PeerMissing
from .host_rows import HostRows, first_rows

WARM_UP = 0.7  # the share of the cache that is filled before training, as published


def find() -> ModuleType:
    """Import its module from the folder that pack_cached_embedding.py makes. Raises PeerMissing if that fails."""
    folder = packed.folder() / "cached_embedding"
    if not folder.is_dir():
        raise PeerMissing(f"there is no {folder}: run `python -m benchmarks.peers.pack_cached_embedding`")
    packed.add_to_path(folder)
    try:
        return importlib.import_module("cache_embedding.cached_embedding")
    except ImportError as error:
        raise PeerMissing(f"{type(error).__name__}: {error}") from error


class CachedEmbedding:
    """All tables as one table, in which their rows follow each other.

    Args:
        frequencies: how often each row is looked up, [sum of sizes]. The cache keeps the most frequent rows. Without
            frequencies it keeps the rows that it has seen most often (LFU).
        sparse: True if the gradient of the cache is a sparse tensor. The default of CachedEmbedding is dense.
    """

    def __init__(
        self,
        sizes: list[int],
        dim: int,
        cache_ratio: float,
        lr: float,
        device: torch.device,
        frequencies: Tensor | None,
        sparse: bool,
    ) -> None:
        library = find()
        self.sizes, self.dim = sizes, dim
        strategy = library.EvictionStrategy.LFU if frequencies is None else library.EvictionStrategy.DATASET
        self.name = f"CachedEmbedding {strategy.name.lower()}, {'sparse' if sparse else 'dense'} gradient"
        self._device = device
        self._first_rows = first_rows(sizes, device)
        self._rows = HostRows(sum(sizes), dim, device)
        with contextlib.redirect_stdout(io.StringIO()):  # the library prints
            self._bag = library.CachedEmbeddingBag(
                sum(sizes),
                dim,
                sparse=sparse,
                _weight=self._rows.values,
                mode="sum",
                cache_ratio=cache_ratio,
                ids_freq_mapping=None if frequencies is None else frequencies.to(device),
                warmup_ratio=WARM_UP,
                pin_weight=True,
                evict_strategy=strategy,
            )
        self._cache = self._bag.cache_weight_mgr
        assert self._cache.weight.data_ptr() == self._rows.values.data_ptr(), (
            "it copied memory that is page-locked already"
        )
        self._optimizer = torch.optim.SGD(self._bag.parameters(), lr=lr)
        self._offsets: dict[int, Tensor] = {}
        self._before = Counts()
        self._after: Counts | None = None

    def embed(self, ids: Tensor) -> Tensor:
        rows = (ids + self._first_rows).view(-1)
        num = rows.numel()
        if num not in self._offsets:
            self._offsets[num] = torch.arange(num, device=self._device)
        embedded: Tensor = self._bag(rows, self._offsets[num])
        return embedded.view(*ids.shape, self.dim)

    def prefetch(self, ids: Tensor) -> None:
        pass

    def step(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()

    def count(self, on: bool) -> None:
        """Remember its counters at the start and at the end, because it always counts."""
        if on:
            self._before, self._after = self._counters(), None
        else:
            self._after = self._counters()

    def figures(self) -> dict[str, float]:
        after = self._after or self._counters()
        return Counts(**{name: value - getattr(self._before, name) for name, value in vars(after).items()}).figures()

    @torch.no_grad()  # otherwise its flush would make the table require a gradient
    def weight(self, table: int) -> Tensor:
        self._cache.flush()
        return self._cache.weight[self._positions(table)]

    @torch.no_grad()
    def load_weight(self, table: int, weight: Tensor) -> None:
        self._cache.flush()
        self._cache.weight[self._positions(table)] = weight.cpu()
        with contextlib.redirect_stdout(io.StringIO()):
            self._cache.reorder(None, WARM_UP)

    def close(self) -> None:
        self._optimizer.param_groups.clear()
        del self._bag, self._cache
        self._offsets.clear()
        self._rows.close()
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _positions(self, table: int) -> Tensor:
        """The positions of a table's rows. It stores the frequent rows of all tables first."""
        start = sum(self.sizes[:table])
        positions: Tensor = self._cache.idx_map[start : start + self.sizes[table]]
        return positions.cpu()

    def _counters(self) -> Counts:
        cache = self._cache
        hits, misses = sum(cache.num_hits_history), sum(cache.num_miss_history)
        return Counts(
            batches=len(cache.num_miss_history),
            lookups=int(cache._total_cache),
            unique=hits + misses,
            misses=misses,
            bytes_in=cache._cpu_to_cuda_numel * 4,
            bytes_out=cache._cuda_to_cpu_numel * 4,
        )


def make(
    sizes: list[int],
    dim: int,
    cache_ratio: float,
    optimizer: str,
    lr: float,
    batch_size: int,
    device: torch.device,
    frequencies: Tensor | None,
    *,
    sparse: bool = False,
) -> CachedEmbedding:
    return CachedEmbedding(sizes, dim, cache_ratio, lr, device, frequencies, sparse)
