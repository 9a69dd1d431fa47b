"""How large an experiment is: the paper's own size, or a small one that a CPU can do."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """What is smaller than in the paper.

    Args:
        rows: share of the tables' rows that are trained.
        counted_rows: share of the tables' rows where ids are only counted, which takes no table.
        batch: batch sizes are divided by it.
        cache: cache sizes in rows are divided by it. A batch of half the samples has more than half the unique rows,
            so caches shrink less than batches.
        dim: width of the rows; None for the paper's.
        most_lr: learning rates are at most this: a smaller batch needs smaller steps, and synthetic data too.
        steps: training steps of each run.
        most_times: batches of half the samples train twice the steps, and so on, up to so many times: a run of short
            steps is over before a machine runs evenly.
        host_steps: of a run with all rows on the host, which takes many times as long; None: as many as others.
        passes: how often all runs that are compared for their speed are made, one after the other; the fastest counts.
        samples: that are read to count duplicates in batches.
        eval_samples: at most so many of each of the validation and test splits.
    """

    name: str
    steps: int
    samples: int
    eval_samples: int
    rows: float = 1.0
    counted_rows: float = 1.0
    batch: int = 1
    cache: int = 1
    dim: int | None = None
    most_lr: float = 1.0
    passes: int = 1
    host_steps: int | None = None
    most_times: int = 1

    def batch_size(self, published: int) -> int:
        return max(1, published // self.batch)

    def cache_rows(self, published: int) -> int:
        return max(1, published // self.cache)

    def said(self) -> str:
        """What is smaller than in the paper, in words."""
        parts = []
        if self.rows != 1:
            parts.append(f"{self.rows:.3g} of the rows")
        if self.batch != 1:
            parts.append(f"batches 1/{self.batch}")
        if self.cache != 1:
            parts.append(f"cache sizes in rows 1/{self.cache}")
        if self.dim is not None:
            parts.append(f"dim {self.dim}")
        sizes = "scaled down: " + ", ".join(parts) if parts else "the paper's sizes"
        return sizes if self.most_lr == 1 else f"{sizes}, learning rates {self.most_lr:g} at most"
