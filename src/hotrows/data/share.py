"""The samples of a split that one rank reads, and their division into batches."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Samples `start` to `stop` of an epoch's order, in `num_batches` batches.

    The shares of all ranks are disjoint and cover every sample, and all ranks have the same number of batches: if a
    rank has one sample less and would therefore have one batch less, one sample of its last full batch becomes a batch
    of its own. (With batches of one sample, or fewer samples than ranks, this is impossible, and a rank may have one
    batch less.) With `drop_last` every batch is full, and samples that do not fill a batch on every rank are dropped.
    """

    num_samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}, it must be 1 or more")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank is {self.rank} of {self.world_size}: it must be from 0 to world_size - 1")

    @property
    def start(self) -> int:
        size, over = divmod(self.num_samples, self.world_size)
        return self.rank * size + (0 if self.drop_last else min(self.rank, over))

    @property
    def stop(self) -> int:
        size, over = divmod(self.num_samples, self.world_size)
        return self.start + size + (0 if self.drop_last else int(self.rank < over))

    @property
    def num_batches(self) -> int:
        if self.drop_last:
            return self.num_samples // self.world_size // self.batch_size
        largest = -(-self.num_samples // self.world_size)
        return min(-(-largest // self.batch_size), self.stop - self.start)

    def bound(self, batch: int) -> int:
        """The first sample of a batch, counted from `start`, which is also the end of the batch before."""
        full = batch * self.batch_size
        if self.drop_last:
            return full
        at_least_one_each = self.stop - self.start - (self.num_batches - batch)
        return min(full, at_least_one_each)
