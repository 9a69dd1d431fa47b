"""How unevenly ids are used: FreqCache's Fig 2 and HECA's Fig 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hotrows.profile.frequencies import Skew
from hotrows.profile.plot import BLUE, INK, ORANGE
from hotrows.reproduce import draw
from hotrows.reproduce.bench import Bench
from hotrows.reproduce.experiment import Column, Curve, Result, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOT = 0.9  # hot ids are the most frequent ids that together get this share of the accesses
NAMES = {"criteo-kaggle": "Criteo Kaggle", "avazu": "Avazu"}
COLORS = {"Criteo Kaggle": BLUE, "Avazu": "#5aa469"}
NUM_POINTS = 200
EXPECTED = "Of a synthetic log it is the expected counts, by the distribution its ids are drawn from."

COLUMNS = (
    Column("data", "data set"),
    Column("rows", "ids", ",d"),
    Column("most", "most frequent id", ",d"),
    Column("ids_for_90", "ids with 90% of accesses", ".4%"),
    Column("published", "paper", "", published=True),
)


@dataclass(frozen=True)
class Use:
    """How the ids of a data set, all tables taken together, are used."""

    data: str
    num_ids: int
    most: int
    hot: float  # share of the ids with 90% of the accesses
    curve: Curve


def use_of(bench: Bench, shape: str, top: int | None) -> Use:
    """Count the ids of a data set. The curve shows the `top` most frequent ids, or all of them."""
    bench.progress(f"counting ids: {shape}", 0.0)
    counts = bench.counting_data(shape).counts()
    hot = Skew.pooled([Skew.of(table.numpy()) for table in counts.values()]).ids_for(HOT)
    ordered = -np.sort(-np.concatenate([table.numpy() for table in counts.values()]))
    seen = ordered[: np.count_nonzero(ordered)]
    ranks = np.unique(np.geomspace(1, min(len(seen), top or len(seen)), NUM_POINTS).round().astype(np.int64))
    bench.progress(f"counting ids: {shape}", 1.0)
    curve = Curve(NAMES[shape], "id, by falling frequency", "accesses", ranks.tolist(), seen[ranks - 1].tolist())
    return Use(NAMES[shape], len(ordered), int(ordered[0]), hot, curve)


def result_of(uses: Sequence[Use], published: dict[str, str], given: bool) -> Result:
    """Put the use of several data sets into one result.

    Args:
        published: the paper's value of some data sets.
        given: True if the user gave all data sets.
    """
    rows: list[Row] = [
        {
            "data": use.data,
            "rows": use.num_ids,
            "most": use.most,
            "ids_for_90": use.hot,
            "published": published.get(use.data, ""),
        }
        for use in uses
    ]
    return Result(COLUMNS, rows, curves=[use.curve for use in uses], notes=[] if given else [EXPECTED])


def draw_use(figure: "Figure", result: Result) -> None:
    """Draw the curves on the left, and the share of the ids with 90% of the accesses on the right."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    curves, shares = draw.axes_of(figure, 2)
    for curve in result.curves:
        curves.plot(curve.x, curve.y, color=COLORS[curve.label], lw=draw.LINE_WIDTH, label=curve.label)
    curves.set_xscale("log")
    curves.set_yscale("log")
    curves.grid(True)
    curves.legend(frameon=False)
    draw.titled(curves, "How often ids are used", result.curves[0].x_title, "accesses")
    positions = range(len(result.rows))
    ours = [float(share) * 100 for share in result.values("ids_for_90")]
    paper = [_percent(text) for text in result.values("published")]
    for values, color, label, shift in ((ours, BLUE, "ours", -0.2), (paper, ORANGE, "paper", 0.2)):
        shown = [(x + shift, value) for x, value in zip(positions, values, strict=True) if value is not None]
        if shown:
            drawn = shares.bar([x for x, _ in shown], [y for _, y in shown], 0.38, color=color, label=label)
            shares.bar_label(drawn, [f"{y:.3g}%" for _, y in shown], padding=3, color=INK)
    shares.set_yscale("log")
    low, high = shares.get_ylim()
    shares.set_ylim(low / 3, high * 3)
    shares.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
    shares.yaxis.set_minor_formatter(NullFormatter())
    shares.grid(True, axis="y")
    shares.set_xticks(list(positions), result.values("data"))
    shares.set_xlim(-0.5, len(result.rows) - 0.5)
    shares.tick_params(axis="x", length=0)
    draw.legend_above(shares)
    draw.titled(shares, "Ids with 90% of accesses", "", "share of all ids")


def _percent(text: str) -> float | None:
    try:
        return float(text.split("%")[0])
    except ValueError:
        return None
