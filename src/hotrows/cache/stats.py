"""What happened in a cache so far."""

from dataclasses import asdict, dataclass, fields


@dataclass
class Stats:
    """Counts since the cache was made. Rows are counted once per batch, however often the batch looks them up."""

    batches: int = 0  # planned for training
    lookups: int = 0
    unique: int = 0  # unique rows: hits + misses
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    bytes_in: int = 0  # store → cache
    bytes_out: int = 0  # cache → store
    overflow: int = 0  # rows that went through the overflow buffer
    rejected_plans: int = 0  # the batches in flight left no room for them
    # Plans made by `plan_now`: of batches not planned ahead, of updates of gathered gradients, and of preloaded rows.
    immediate_plans: int = 0
    read_rows: int = 0  # unique rows read without training (eval, no_grad)
    stale: int = 0  # rows read early and updated before their batch trained (`cache.stale_reads`)
    stalls: int = 0  # how often moves or a stale read were not complete when the caller's stream came to wait for them
    stall_seconds: float = 0.0  # how long the calling thread waited for them; about 0 on CUDA, where only streams wait

    @property
    def hit_rate(self) -> float:
        """Share of the unique rows that were found in the cache."""
        return self.hits / self.unique if self.unique else 0.0

    @property
    def stale_share(self) -> float:
        """Share of the unique rows whose value was out of date when a batch trained on it."""
        return self.stale / self.unique if self.unique else 0.0

    def __getitem__(self, name: str) -> float:
        value: float = getattr(self, name)
        return value

    def __add__(self, other: "Stats") -> "Stats":
        return Stats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def as_dict(self) -> dict[str, float]:
        return {**asdict(self), "hit_rate": self.hit_rate}
