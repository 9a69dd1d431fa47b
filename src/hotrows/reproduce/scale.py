"""How large an experiment is: the paper's own size, or one that a CPU can train in minutes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """What is smaller than in the paper.

    Args:
        rows: the share of the tables' rows in training.
        counted_rows: the share of the tables' rows where ids are only counted, which takes no table.
        batch: batch sizes are divided by this.
        cache: cache sizes in rows are divided by this. Half a batch has more than half of its unique rows, so caches
            shrink less than batches.
        dim: the width of the rows. None takes the paper's.
        max_lr: an upper limit of the learning rates, because smaller batches and synthetic data need smaller steps.
        steps: the training steps of each run.
        max_step_factor: batches of half the size train twice as many steps and so on, up to this factor. A run of a
            few short steps would be over before the machine runs evenly.
        host_steps: the steps of a run with all rows on the host, which takes many times as long. None takes `steps`.
        passes: how often runs that are compared for their speed are made. The fastest of each counts.
        samples: how many samples are read to count duplicates in batches.
        eval_samples: how many samples of each of the validation and test splits are used at most.
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
    max_lr: float = 1.0
    passes: int = 1
    host_steps: int | None = None
    max_step_factor: int = 1

    def batch_size(self, published: int) -> int:
        return max(1, published // self.batch)

    def cache_rows(self, published: int) -> int:
        return max(1, published // self.cache)

    def describe(self) -> str:
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
        return sizes if self.max_lr == 1 else f"{sizes}, learning rates {self.max_lr:g} at most"
