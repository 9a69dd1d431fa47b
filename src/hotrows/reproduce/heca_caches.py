"""HECA, Fig 8 and 11: hit rate and throughput by cache size and batch size."""

from typing import TYPE_CHECKING

from hotrows.profile.plot import INK, ORANGE, QUIET
from hotrows.reproduce import draw
from hotrows.reproduce.bench import Bench
from hotrows.reproduce.experiment import NOT_READABLE, Claim, Column, Experiment, Result, Row, number, speed_claim
from hotrows.reproduce.heca_runs import BATCH_SIZES, CACHE_ROWS, DEFAULT_CACHE, settings_of, speeds, train

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENOUGH = 50_000  # a cache of more rows gains little
FIG_8_RATES = dict(zip(BATCH_SIZES, (0.72, 0.77, 0.92, 0.95), strict=True))  # at the smallest cache
FLAT_POINTS = 0.02
FLAT_SPEED = 0.1


def fig_8(bench: Bench) -> Result:
    rows: list[Row] = []
    for size in BATCH_SIZES:
        for cache in CACHE_ROWS:
            trained = train(bench, "heca", size, cache)
            published: float | str = FIG_8_RATES[size] if cache == CACHE_ROWS[0] else NOT_READABLE
            rows.append(
                {
                    "batch": bench.scale.batch_size(size),
                    "cache": bench.scale.cache_rows(cache),
                    "lookups": 1 - trained.total("misses") / trained.total("lookups"),
                    "unique": 1 - trained.total("misses") / trained.total("unique"),
                    "published": published,
                }
            )
    by_batch = _by_batch(rows, "lookups")
    gains = [rates[CACHE_ROWS.index(ENOUGH)] - rates[0] for rates in by_batch]
    later = [rates[-1] - rates[CACHE_ROWS.index(ENOUGH)] for rates in by_batch]
    enough = f"{bench.scale.cache_rows(ENOUGH):,}"
    return Result(
        (
            Column("batch", "batch", ",d"),
            Column("cache", "cache, rows", ",d"),
            Column("lookups", "hit rate of lookups", ".2%"),
            Column("unique", "of unique rows", ".2%"),
            Column("published", "paper", ".0%", published=True),
        ),
        rows,
        [
            Claim(
                "the hit rate rises with the cache at every batch size",
                all(rates == sorted(set(rates)) for rates in by_batch),
                f"from the smallest cache to {enough} rows by {_points(gains)}",
            ),
            Claim(
                f"it is flat beyond {enough} rows: less than 2 points more",
                all(more < FLAT_POINTS for more in later),
                f"beyond by {_points(later)}",
            ),
            Claim(
                f"beyond {enough} rows it gains less than half of what it gains up to there",
                all(more < gain / 2 for more, gain in zip(later, gains, strict=True)),
                ", ".join(f"{more / gain:.0%}" for more, gain in zip(later, gains, strict=True)),
            ),
        ],
        settings=settings_of(bench),
        notes=[
            "Cache sizes are read as 20,000 to 80,000, as in Fig 11: the text's 2,000 to 8,000 cannot hold a batch. A "
            "lookup hits unless its row is fetched for it: of several lookups of a row in a batch one at most misses. "
            "That the paper's rates rise with the batch size suggests that it counts like this.",
            f"After a warm-up of 30% of {bench.iterations}.",
        ],
    )


def draw_fig_8(figure: "Figure", result: Result) -> None:
    lookups, rows = draw.axes_of(figure, 2)
    published = [number(row["published"]) for row in result.rows[:: len(CACHE_ROWS)]]
    for axes, key in ((lookups, "lookups"), (rows, "unique")):
        _by_cache(axes, result, key)
        _label_inside(axes)
        axes.set_ylim(0, 1.05)
        draw.percent(axes)
    positions = [group - 0.3 for group in range(len(published))]
    lookups.plot(positions, published, "D", color=ORANGE, mec="white", ms=8, label="paper, smallest cache", zorder=5)
    draw.titled(lookups, "Hit rate of lookups", "batch size", "")
    draw.titled(rows, "Hit rate of unique rows", "batch size", "")
    draw.legend_below(figure, lookups, "rows in the cache")


def _label_inside(axes: "Axes") -> None:
    """Write whole percents into the middle of the bars."""
    from matplotlib.container import BarContainer

    for shade, drawn in enumerate(axes.containers):
        assert isinstance(drawn, BarContainer)
        labels = [f"{100 * bar.get_height():.0f}" for bar in drawn]
        axes.bar_label(drawn, labels, label_type="center", color=INK if shade < 2 else "white", fontsize=9)


def fig_11(bench: Bench) -> Result:
    rows: list[Row] = []
    cases = [("heca", size, cache) for size in BATCH_SIZES for cache in CACHE_ROWS]
    found = speeds(bench, cases + [("host", size, DEFAULT_CACHE) for size in BATCH_SIZES])
    for size in BATCH_SIZES:
        host = found["host", size, DEFAULT_CACHE]
        for cache in CACHE_ROWS:
            speed = found["heca", size, cache]
            batch = bench.scale.batch_size(size)
            rows.append(
                {"batch": batch, "cache": bench.scale.cache_rows(cache), "samples": speed, "ms": 1000 * batch / speed,
                 "host": host, "published": NOT_READABLE}
            )  # fmt: skip
    by_batch = _by_batch(rows, "samples")
    enough = CACHE_ROWS.index(ENOUGH)
    rises = [speeds[enough] / speeds[0] - 1 for speeds in by_batch]
    beyond = [speeds[-1] / speeds[enough] - 1 for speeds in by_batch]
    return Result(
        (
            Column("batch", "batch", ",d"),
            Column("cache", "cache, rows", ",d"),
            Column("samples", "samples/s", ",.0f"),
            Column("ms", "ms/iteration", ",.3f"),
            Column("host", "host, samples/s", ",.0f"),
            Column("published", "paper", "", published=True),
        ),
        rows,
        [
            speed_claim(
                bench,
                "throughput rises with the cache at the two large batch sizes",
                all(rise > 0 for rise in rises[2:]),
                f"from the smallest cache to {bench.scale.cache_rows(ENOUGH):,} rows by {_percents(rises)}",
            ),
            speed_claim(
                bench,
                f"it is flat beyond {bench.scale.cache_rows(ENOUGH):,} rows: within {FLAT_SPEED:.0%}",
                all(abs(change) <= FLAT_SPEED for change in beyond),
                _percents(beyond),
            ),
        ],
        settings=settings_of(bench),
        notes=[
            f"{bench.timing} Paper, in words: cache size has little "
            "effect at batches of 1,024 and 2,048; at 4,096 and 8,192 caches of 20,000 and 30,000 rows are much slower."
        ],
    )


def draw_fig_11(figure: "Figure", result: Result) -> None:
    (axes,) = draw.axes_of(figure)
    _by_cache(axes, result, "samples")
    host = [number(row["host"]) for row in result.rows[:: len(CACHE_ROWS)]]
    for group, value in enumerate(host):
        label = "rows on the host" if group == 0 else None
        axes.plot([group - 0.42, group + 0.42], [value, value], color=QUIET, lw=1.6, ls=(0, (4, 2)), label=label)
    axes.set_ylim(0, 1.1 * max([*result.values("samples"), *host]))
    draw.thousands(axes)
    draw.titled(axes, "Throughput", "batch size", "samples/s")
    draw.legend_below(figure, axes, "rows in the cache")


def _by_cache(axes: "Axes", result: Result, key: str) -> None:
    """Draw a group of bars for each batch size, with a bar for each cache size."""
    sizes = list(dict.fromkeys(result.values("batch")))
    caches = list(dict.fromkeys(result.values("cache")))
    series = {f"{cache:,}": [row[key] for row in result.rows if row["cache"] == cache] for cache in caches}
    draw.bars(axes, [f"{size:,}" for size in sizes], series, None, colors=draw.SHADES)


def _by_batch(rows: list[Row], key: str) -> list[list[float]]:
    """The values of each batch size, from the smallest cache to the largest."""
    num = len(CACHE_ROWS)
    return [[number(row[key]) for row in rows[first : first + num]] for first in range(0, len(rows), num)]


def _points(changes: list[float]) -> str:
    return f"{', '.join(f'{100 * change:.1f}' for change in changes)} points"


def _percents(changes: list[float]) -> str:
    return ", ".join(f"{change:+.1%}" for change in changes)


FIG_8 = Experiment("fig8", "Fig 8: hit rate", "Hit rate by cache size and batch size.", fig_8, draw_fig_8)
FIG_11 = Experiment("fig11", "Fig 11: throughput", "Throughput by cache size and batch size.", fig_11, draw_fig_11)
