"""What a strategy may know about the training data before training begins."""

from collections.abc import Callable, Mapping

from torch import Tensor

from hotrows.data.schema import Column, DataSet, Loader, Schema
from hotrows.profile.sampled_counts import sampled_counts


class DataKnowledge:
    """The training split of a data set, as a strategy sees it.

    Every method reads the data when it is called, and keeps nothing: the counts of all tables can take gigabytes.
    """

    def __init__(self, data: DataSet) -> None:
        self._data = data

    @property
    def schema(self) -> Schema:
        return self._data.schema

    def counts(self) -> dict[str, Tensor]:
        """How often each id of each table occurs, int64 [rows] by table. A data set may estimate it."""
        return self._data.counts()

    def sampled_counts(self, share: float, seed: int = 0) -> dict[str, Tensor]:
        """Like `counts`, but counted on a random share of the samples. Only that share is read."""
        return sampled_counts(self._data, share, seed)

    def samples(self, batch_size: int, *, shuffle: bool = False, seed: int = 0) -> Loader:
        """A loader of the training samples. It is independent of the one that training reads."""
        return self._data.loader("train", batch_size, shuffle=shuffle, seed=seed)


class KnownCounts(DataKnowledge):
    """Counts alone, for a program that trains without a hotrows data set.

    Args:
        count: returns how often each id of each table occurs, int64 [rows] by table.

    Example::

        make_strategy("freqcache", CacheSettings(size="1.5%"), data=KnownCounts(lambda: {"C1": counts}))
    """

    def __init__(self, count: Callable[[], Mapping[str, Tensor]]) -> None:
        self._count = count

    @property
    def schema(self) -> Schema:
        return Schema((), tuple(Column(name, counts.numel()) for name, counts in self._count().items()))

    def counts(self) -> dict[str, Tensor]:
        return dict(self._count())

    def sampled_counts(self, share: float, seed: int = 0) -> dict[str, Tensor]:
        """The counts themselves: there are no samples to draw from."""
        return self.counts()

    def samples(self, batch_size: int, *, shuffle: bool = False, seed: int = 0) -> Loader:
        raise ValueError("only counts are known, so there are no samples to read: give DataKnowledge(a data set)")
