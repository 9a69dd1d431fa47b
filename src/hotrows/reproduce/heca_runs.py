"""HECA's training runs: Wide&Deep on Criteo Kaggle, one device."""

from collections.abc import Sequence
from typing import Any

from hotrows.reproduce.bench import Bench, Trained
from hotrows.strategies.base import CacheSettings
from hotrows.train.config import ModelConfig, OptimizerConfig, RunConfig, TrainConfig

SHAPE = "criteo-kaggle"
DIM = 96
LR = 0.05  # not published
BATCH_SIZES = (1024, 2048, 4096, 8192)
CACHE_ROWS = (20_000, 30_000, 50_000, 80_000)
DEFAULT_CACHE = 80_000


def train(bench: Bench, strategy: str, batch_size: int, cache_rows: int = DEFAULT_CACHE, again: int = 0) -> Trained:
    """A run with a published batch size and cache, both made as small as the scale asks for."""
    size, rows = bench.scale.batch_size(batch_size), bench.scale.cache_rows(cache_rows)
    data = bench.kept(SHAPE, bench.scale.batch_size(max(BATCH_SIZES)))
    cached = strategy == "heca"
    config = RunConfig(
        strategy=strategy,
        model=ModelConfig("wide-deep", bench.scale.dim or DIM),
        cache=CacheSettings(size=rows) if cached else CacheSettings(),
        optimizer=OptimizerConfig("sgd", LR),
        dense_optimizer=OptimizerConfig("sgd", LR),
        train=TrainConfig(batch_size=size),
    )
    what = f"{strategy}, batch {size:,}" + (f", {rows:,} rows" if cached else "")
    return bench.train(what, config, data, again, times=max(BATCH_SIZES) // batch_size)


def speeds(bench: Bench, cases: Sequence[tuple[str, int, int]]) -> dict[tuple[str, int, int], float]:
    """Samples per second of strategies with a batch size and a cache each.

    All are run one after the other, and again: what else a machine does meanwhile seldom hits a case twice. Where rows
    on the host take so long that they get fewer steps, they are run once. After Ctrl-C the passes that are complete
    count.
    """
    found = dict.fromkeys(cases, 0.0)
    for again in range(bench.scale.passes):
        once: dict[tuple[str, int, int], float] = {}
        try:
            for case in cases:
                if again == 0 or case[0] != "host" or bench.scale.host_steps is None:
                    once[case] = train(bench, *case, again).samples_per_second
        except KeyboardInterrupt:
            if again == 0:
                raise
            bench.passes_done = again
            break
        for case, speed in once.items():
            found[case] = max(found[case], speed)
    return found


def settings_of(bench: Bench) -> dict[str, Any]:
    return {
        "data": bench.kept(SHAPE, bench.scale.batch_size(max(BATCH_SIZES))).name,
        "steps": bench.num_steps,
        **({} if bench.scale.most_times == 1 else {"most_steps": bench.num_steps * bench.scale.most_times}),
        "host_steps": bench.steps_of("host"),
        "model": "wide-deep",
        "dim": bench.scale.dim or DIM,
        "optimizer": "sgd",
        "lr": LR,
        "precision": bench.precision,
    }
