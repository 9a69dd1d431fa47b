"""The training runs of HECA: Wide&Deep on Criteo Kaggle, on one device."""

from collections.abc import Sequence
from typing import Any

from hotrows.reproduce.bench import Bench, Trained
from hotrows.strategies.base import CacheSettings
from hotrows.train.config import DenseOptimizerConfig, ModelConfig, OptimizerConfig, RunConfig, TrainConfig

SHAPE = "criteo-kaggle"
DIM = 96
LR = 0.05  # not published
BATCH_SIZES = (1024, 2048, 4096, 8192)
CACHE_ROWS = (20_000, 30_000, 50_000, 80_000)
DEFAULT_CACHE = 80_000


def train(bench: Bench, strategy: str, batch_size: int, cache_rows: int = DEFAULT_CACHE, attempt: int = 0) -> Trained:
    """A run with a published batch size and cache, scaled down as the bench's scale says."""
    size, rows = bench.scale.batch_size(batch_size), bench.scale.cache_rows(cache_rows)
    data = bench.training_data(SHAPE, bench.scale.batch_size(max(BATCH_SIZES)))
    cached = strategy == "heca"
    config = RunConfig(
        strategy=strategy,
        model=ModelConfig("wide-deep", bench.scale.dim or DIM, init="uniform"),
        cache=CacheSettings(size=rows) if cached else CacheSettings(),
        optimizer=OptimizerConfig("sgd", LR),
        dense_optimizer=DenseOptimizerConfig("sgd", LR),
        train=TrainConfig(batch_size=size),
    )
    what = f"{strategy}, batch {size:,}" + (f", {rows:,} rows" if cached else "")
    return bench.train(what, config, data, attempt, step_factor=max(BATCH_SIZES) // batch_size)


def speeds(bench: Bench, cases: Sequence[tuple[str, int, int]]) -> dict[tuple[str, int, int], float]:
    """Samples per second of cases: a strategy with a batch size and a cache each.

    All cases run one after the other, in several passes, and the fastest run of each counts: other work on the machine
    rarely slows down the same case twice. `host` runs once if the scale gives it fewer steps, because it takes long.
    After Ctrl-C the complete passes count.
    """
    found = dict.fromkeys(cases, 0.0)
    for attempt in range(bench.scale.passes):
        measured: dict[tuple[str, int, int], float] = {}
        try:
            for case in cases:
                if attempt == 0 or case[0] != "host" or bench.scale.host_steps is None:
                    measured[case] = train(bench, *case, attempt).samples_per_second
        except KeyboardInterrupt:
            if attempt == 0:
                raise
            bench.passes_done = attempt
            break
        for case, speed in measured.items():
            found[case] = max(found[case], speed)
    return found


def settings_of(bench: Bench) -> dict[str, Any]:
    return {
        "data": bench.training_data(SHAPE, bench.scale.batch_size(max(BATCH_SIZES))).name,
        "steps": bench.num_steps,
        **({} if bench.scale.max_step_factor == 1 else {"most_steps": bench.num_steps * bench.scale.max_step_factor}),
        "host_steps": bench.steps_of("host"),
        "model": "wide-deep",
        "dim": bench.scale.dim or DIM,
        "optimizer": "sgd",
        "lr": LR,
        "precision": bench.precision,
    }
