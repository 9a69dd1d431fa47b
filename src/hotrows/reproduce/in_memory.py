"""A data set that is read into memory once, so that the times of many runs do not include reading it."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.data.schema import DataSet, Loader
from hotrows.strategies import DataKnowledge

_READ = 65_536


class InMemoryDataSet:
    """The first samples of each split of a data set, in memory.

    Args:
        num_train: how many samples of the training split to keep at most.
        num_eval: how many samples of each other split to keep at most.
        progress: called with the share of the samples that has been read.
        pinned: keep the samples in pinned memory, from which a GPU copies asynchronously.
    """

    def __init__(
        self,
        dataset: DataSet,
        num_train: int,
        num_eval: int,
        progress: Callable[[float], None] = lambda done: None,
        pinned: bool = False,
    ) -> None:
        if dataset.schema.has_sequences:
            raise ValueError(f"{dataset.name} has columns of several ids, the papers' experiments are for one id each")
        self.name = dataset.name
        self.schema = dataset.schema
        self.counts: Callable[[], dict[str, Tensor]] = cache(dataset.counts)
        self.knowledge: DataKnowledge = _CachedKnowledge(self)
        wanted = {"train": num_train, "valid": num_eval, "test": num_eval}
        sizes = {split: min(num, dataset.num_samples(split)) for split, num in wanted.items()}
        done = _Progress(sum(sizes.values()), progress)
        self._splits = {split: _read(dataset, split, size, done, pinned) for split, size in sizes.items()}

    def num_samples(self, split: str) -> int:
        return self._splits[split].label.shape[0]

    def loader(
        self,
        split: str,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
    ) -> Loader:
        assert world_size == 1, "experiments run on one device"
        samples = self._splits[split]
        if shuffle:
            assert isinstance(samples.ids, Tensor)
            order = torch.randperm(samples.label.shape[0], generator=torch.Generator().manual_seed(seed))
            samples = Batch(samples.dense[order], samples.ids[order], samples.label[order])
        return InMemoryLoader(samples, batch_size)


class InMemoryLoader:
    """Batches of samples in memory, in their order."""

    def __init__(self, samples: Batch, batch_size: int) -> None:
        self._samples = samples
        self._batch_size = batch_size

    def __len__(self) -> int:
        return -(-self._samples.label.shape[0] // self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        parts = (self._samples.dense, self._samples.ids, self._samples.label)
        for first in range(0, self._samples.label.shape[0], self._batch_size):
            chosen = slice(first, first + self._batch_size)
            yield Batch(*(part[chosen] for part in parts if isinstance(part, Tensor)))

    def set_epoch(self, epoch: int) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class _CachedKnowledge(DataKnowledge):
    """Caches the counts of a sample for all runs that need it."""

    def __init__(self, data: InMemoryDataSet) -> None:
        super().__init__(data)
        self._sampled_counts = cache(super().sampled_counts)

    def sampled_counts(self, share: float, seed: int = 0) -> dict[str, Tensor]:
        return self._sampled_counts(share, seed)


def _read(dataset: DataSet, split: str, num: int, progress: "_Progress", pinned: bool) -> Batch:
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    read = 0
    if num:
        for batch in dataset.loader(split, min(_READ, num)):
            assert isinstance(batch.ids, Tensor)
            parts.append((batch.dense.cpu(), batch.ids.cpu(), batch.label.cpu()))
            read += batch.label.shape[0]
            progress.add(batch.label.shape[0])
            if read >= num:
                break
    empty = (
        torch.empty(0, len(dataset.schema.dense)),
        torch.empty(0, len(dataset.schema.categorical), dtype=torch.int64),
        torch.empty(0),
    )
    kept = (torch.cat(part)[:num] for part in zip(empty, *parts, strict=True))
    return Batch(*(part.pin_memory() if pinned else part for part in kept))


class _Progress:
    """Reports the share of the samples that has been read."""

    def __init__(self, total: int, progress: Callable[[float], None]) -> None:
        self._total, self._read = max(1, total), 0
        self._progress = progress

    def add(self, num: int) -> None:
        self._read += num
        self._progress(min(1.0, self._read / self._total))
