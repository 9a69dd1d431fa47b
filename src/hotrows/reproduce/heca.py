"""HECA (Wu et al. 2024): Fig 1 and 9, which need no training. heca_batches.py and heca_caches.py have the others."""

from typing import TYPE_CHECKING

from hotrows.profile.lookups import RowNumbers
from hotrows.profile.measure import unique_rows
from hotrows.reproduce import draw
from hotrows.reproduce.bench import Bench
from hotrows.reproduce.experiment import Claim, Column, Experiment, Result, Row
from hotrows.reproduce.heca_batches import FIG_6, FIG_7, FIG_10
from hotrows.reproduce.heca_caches import FIG_8, FIG_11
from hotrows.reproduce.heca_runs import BATCH_SIZES
from hotrows.reproduce.ids import NAMES, draw_use, result_of, use_of
from hotrows.reproduce.scale import Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = {
    "small": Scale("small", steps=50, samples=2**17, eval_samples=2048, rows=0.05, batch=8, cache=4, dim=8, passes=3),
    "full": Scale("full", steps=600, samples=2**20, eval_samples=2**16, host_steps=100, passes=3, max_step_factor=4),
}
HOT_IDS = 0.0443
MOST_FREQUENT = 10**7
KEPT = dict(zip(BATCH_SIZES, (0.26, 0.21, 0.17, 0.13), strict=True))
FITTED = (
    "The synthetic log was fitted to these shares: on it this shows that hotrows counts as the paper does. Give --data "
    "to see a log of your own."
)
TOLERANCE = 0.01


def fig_1(bench: Bench) -> Result:
    uses = [use_of(bench, shape, top=None) for shape in NAMES]
    result = result_of(
        uses,
        {name: f"{HOT_IDS:.2%}" if name == NAMES["criteo-kaggle"] else "" for name in NAMES.values()},
        given=len(bench.given) == len(NAMES),
    )
    found = ", ".join(f"{use.data} {use.hot:.4%}" for use in uses)
    most = min(use.most for use in uses)
    result.claims += [
        Claim("at most 4.43% of the ids get 90% of the accesses", all(use.hot <= HOT_IDS for use in uses), found),
        Claim("the most frequent id of each occurs 10⁷ times or more", most >= MOST_FREQUENT, f"{most:,}"),
    ]
    result.notes.append(
        "The paper does not say which of its two data sets 4.43% belongs to; FreqCache finds 0.14% on the same log."
    )
    return result


def fig_9(bench: Bench) -> Result:
    kept = duplicates(bench)
    rows: list[Row] = [
        {"batch": size, "before": before, "after": after, "ours": after / before, "published": KEPT[size]}
        for size, (before, after) in kept.items()
    ]
    furthest = max(abs(after / before - KEPT[size]) for size, (before, after) in kept.items())
    return Result(
        (
            Column("batch", "batch", ",d"),
            Column("before", "ids in a batch", ",.0f"),
            Column("after", "unique", ",.0f"),
            Column("ours", "kept", ".2%"),
            Column("published", "paper", ".0%", published=True),
        ),
        rows,
        [
            Claim(
                "within a point of 26, 21, 17, 13%",
                furthest <= TOLERANCE,
                f"at most {100 * furthest:.2f} points off",
            )
        ],
        settings={"data": bench.counting_data("criteo-kaggle").name, "samples": bench.scale.samples},
        notes=[
            "The paper's text calls this Figure 10. Batches are the paper's, whatever the scale: no row is needed.",
            *([] if "criteo-kaggle" in bench.given else [FITTED]),
        ],
    )


def duplicates(bench: Bench) -> dict[int, tuple[float, float]]:
    """The ids in a batch before and after deduplication (DSF), by batch size: means over the first samples."""
    data = bench.counting_data("criteo-kaggle")
    numbers = RowNumbers(data.schema)
    largest = max(BATCH_SIZES)
    num_blocks = min(bench.scale.samples, data.num_samples("train")) // largest
    if num_blocks == 0:
        raise ValueError(f"{data.name} has fewer samples than the largest batch, {largest:,}")
    before, after, num = (dict.fromkeys(BATCH_SIZES, 0) for _ in range(3))
    for number, block in enumerate(data.loader("train", largest), start=1):
        lookups = numbers.lookups(block.ids)
        for size in BATCH_SIZES:
            for rows in lookups.batches(size, drop_last=True):
                before[size] += rows.size
                after[size] += unique_rows(rows).size
                num[size] += 1
        bench.progress("counting duplicates", number / num_blocks)
        if number == num_blocks:
            break
    return {size: (before[size] / num[size], after[size] / num[size]) for size in BATCH_SIZES}


def draw_fig_9(figure: "Figure", result: Result) -> None:
    (axes,) = draw.axes_of(figure)
    groups = [f"{size:,}" for size in result.values("batch")]
    draw.bars(axes, groups, {"ours": result.values("ours"), "paper": result.values("published")}, lambda v: f"{v:.1%}")
    draw.percent(axes)
    draw.legend_above(axes)
    draw.titled(axes, "What deduplication keeps", "batch size", "unique ids of a batch")


EXPERIMENTS = (
    Experiment(
        "fig1",
        "Fig 1: how often ids are used",
        "The share of ids that gets 90% of accesses.",
        fig_1,
        draw_use,
        data=tuple(NAMES),
        trains=False,
    ),
    FIG_6,
    FIG_7,
    FIG_8,
    Experiment(
        "fig9",
        "Fig 9: duplicates in a batch",
        "What deduplication (DSF) keeps of a batch.",
        fig_9,
        draw_fig_9,
        trains=False,
    ),
    FIG_10,
    FIG_11,
)
