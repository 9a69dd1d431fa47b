"""FBGEMM, the operator under TorchRec: rows in host memory behind a cache on the GPU, or all of them on the GPU.

FBGEMM does not cache optimizer state that is as wide as the row (Adam's). Its kernels access that in host memory.
"""

import gc
import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from . import packed
from .base import Counts, PeerMissing

TRAINING = "fbgemm_gpu.split_table_batched_embeddings_ops_training"
NUM_STATES = {"sgd": 0, "adam": 2}  # values of optimizer state for each weight


@dataclass(frozen=True)
class Mode:
    """Where FBGEMM has the rows. Without a cache algorithm all of them are on the GPU."""

    name: str
    algorithm: str | None = None  # of the cache: LRU or LFU
    prefetch: bool = False


MODES = {
    "fbgemm-lru": Mode("FBGEMM UVM cache LRU", "LRU"),
    "fbgemm-lru-prefetch": Mode("FBGEMM UVM cache LRU, prefetch", "LRU", prefetch=True),
    "fbgemm-lfu": Mode("FBGEMM UVM cache LFU", "LFU"),  # FBGEMM prefetches with LRU only
    "fbgemm-hbm": Mode("FBGEMM all in HBM"),
}


def find() -> ModuleType:
    """Import FBGEMM's module, installed or packed. Raises PeerMissing if that fails."""
    with _no_warnings():
        try:
            return importlib.import_module(TRAINING)
        except ModuleNotFoundError as error:
            archive = packed.folder() / "fbgemm.tar.xz"
            if not archive.exists():
                raise PeerMissing(f"{error}, and there is no {archive}") from error
            packed.add_to_path(packed.unpacked(archive))
        except (ImportError, OSError) as error:
            raise PeerMissing(_reason(error)) from error
        try:
            return importlib.import_module(TRAINING)
        except (ImportError, OSError) as error:
            raise PeerMissing(_reason(error)) from error


class Fbgemm:
    """One operator for all tables. It updates the rows in the backward pass.

    With prefetching, all fetches run on a stream of their own, in the order of TorchRec's
    PrefetchTrainPipelineSparseDist: the first batch is fetched before its forward pass, and every other batch after the
    forward pass of the batch before it. So `prefetch` only stores the ids, and `embed` queues the work.
    """

    def __init__(self, mode: Mode, tbe: Any, num_states: int, device: torch.device) -> None:
        self.name = mode.name
        self._num_states = num_states
        self._mode, self._tbe, self._device = mode, tbe, device
        self._stream = torch.cuda.Stream(device) if mode.prefetch else None
        self._noted: tuple[Tensor, torch.cuda.Event] | None = None
        self._fetched: tuple[Tensor, Tensor] | None = None  # ids as given and as FBGEMM reads them
        self._offsets: dict[int, Tensor] = {}
        self._counting = False
        self._counts = Counts()

    def embed(self, ids: Tensor) -> Tensor:
        batch_size, num_features = ids.shape
        offsets = self._offsets_of(ids)
        if self._stream is None:
            indices = _feature_major(ids)
            self._count(indices, offsets)
        else:
            indices = self._wait_for_fetched(ids)
        embedded: Tensor = self._tbe(indices, offsets)  # [B, F * D]
        if self._noted is not None:
            self._fetch(*self._noted)
            self._noted = None
        return embedded.view(batch_size, num_features, -1)

    def prefetch(self, ids: Tensor) -> None:
        if self._stream is None:
            return
        self._offsets_of(ids)
        self._noted = ids, torch.cuda.current_stream(self._device).record_event()

    def step(self) -> None:
        pass

    def count(self, on: bool) -> None:
        self._counting = on
        if on:
            self._counts = Counts()

    def figures(self) -> dict[str, float]:
        return self._counts.figures() if self._mode.algorithm else {}

    def weight(self, table: int) -> Tensor:
        torch.cuda.synchronize(self._device)
        self._tbe.flush()
        # A kernel copies it, as FBGEMM reads it: the memory is on the host, although the tensor's device is cuda.
        return torch.mul(self._tbe.split_embedding_weights()[table], 1.0).cpu()

    def load_weight(self, table: int, weight: Tensor) -> None:
        self._tbe.flush()
        torch.mul(weight.to(self._device), 1.0, out=self._tbe.split_embedding_weights()[table])
        self._tbe.reset_cache_states()

    def close(self) -> None:
        torch.cuda.synchronize(self._device)
        self._tbe = self._noted = self._fetched = None
        self._offsets.clear()
        gc.collect()  # its hooks form a reference cycle with it
        torch.cuda.empty_cache()

    def _fetch(self, ids: Tensor, ready: torch.cuda.Event) -> None:
        """Queue the fetch of a batch behind `ready`, which is behind the backward pass of the batch before."""
        assert self._stream is not None
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            ids.record_stream(self._stream)
            indices, offsets = _feature_major(ids), self._offsets_of(ids)
            indices.record_stream(current)
            self._count(indices, offsets)
            self._tbe.prefetch(indices, offsets, forward_stream=current)
        self._fetched = ids, indices

    def _wait_for_fetched(self, ids: Tensor) -> Tensor:
        current = torch.cuda.current_stream(self._device)
        if self._fetched is None:
            self._fetch(ids, current.record_event())
        assert self._fetched is not None
        (expected, indices), self._fetched = self._fetched, None
        if ids.data_ptr() != expected.data_ptr() or ids.shape != expected.shape:
            raise ValueError("the ids are not those that were prefetched: FBGEMM would read the rows of the others")
        current.wait_stream(self._stream)
        return indices

    def _offsets_of(self, ids: Tensor) -> Tensor:
        """The offsets of bags with one id each."""
        num = ids.numel()
        if num not in self._offsets:
            self._offsets[num] = torch.arange(num + 1, device=self._device)
        return self._offsets[num]

    def _count(self, indices: Tensor, offsets: Tensor) -> None:
        """Count the rows that are not in the cache just before FBGEMM fetches them.

        The bytes follow from FBGEMM's algorithm and are not measured: a missing row is read and another one written
        back, and Adam's state of every row of the batch is read and written in host memory. A row that finds no slot in
        its set of the cache is accessed in host memory, perhaps several times. It counts once.
        """
        tbe = self._tbe
        if not self._counting or not tbe.lxu_cache_weights.numel():
            return
        rows = torch.ops.fbgemm.linearize_cache_indices(tbe.cache_hash_size_cumsum, indices, offsets)
        slots = torch.ops.fbgemm.lxu_cache_lookup(rows, tbe.lxu_cache_state, tbe.total_cache_hash_size)
        unique, misses = rows.unique().numel(), rows[slots == -1].unique().numel()
        row_bytes = tbe.max_D * 4
        state_bytes = unique * self._num_states * row_bytes
        self._counts.batches += 1
        self._counts.lookups += indices.numel()
        self._counts.unique += unique
        self._counts.misses += misses
        self._counts.bytes_in += misses * row_bytes + state_bytes
        self._counts.bytes_out += misses * row_bytes + state_bytes


def make(
    mode: Mode,
    sizes: list[int],
    dim: int,
    cache_ratio: float,
    optimizer: str,
    lr: float,
    batch_size: int,
    device: torch.device,
    frequencies: Tensor | None,
) -> Fbgemm:
    tbe = make_operator(mode, sizes, dim, cache_ratio, optimizer, lr, device)
    for weight in tbe.split_embedding_weights():
        bound = weight.shape[0] ** -0.5  # the default of hotrows
        weight.uniform_(-bound, bound)
    return Fbgemm(mode, tbe, NUM_STATES[optimizer], device)


def make_operator(
    mode: Mode, sizes: list[int], dim: int, cache_ratio: float, optimizer: str, lr: float, device: torch.device
) -> Any:
    """Make FBGEMM's module. All rows are zero."""
    ops = find()
    location = ops.EmbeddingLocation.MANAGED_CACHING if mode.algorithm else ops.EmbeddingLocation.DEVICE
    return ops.SplitTableBatchedEmbeddingBagsCodegen(
        [(size, dim, location, ops.ComputeDevice.CUDA) for size in sizes],
        optimizer={"sgd": ops.OptimType.EXACT_SGD, "adam": ops.OptimType.ADAM}[optimizer],
        learning_rate=lr,
        cache_algorithm=ops.CacheAlgorithm[mode.algorithm or "LRU"],
        cache_load_factor=cache_ratio,
        prefetch_pipeline=mode.prefetch,
        uvm_host_mapped=True,  # managed memory can hang the GPU
        device=device,
    )


def _feature_major(ids: Tensor) -> Tensor:
    return ids.t().contiguous().view(-1)


def _reason(error: BaseException) -> str:
    """The first cause of an error: FBGEMM wraps the error of the dynamic loader."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Silence FBGEMM 1.6, which logs for each of its libraries that it cannot find out the torch version."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)
