"""A profile as a picture."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotrows.profile.frequencies import Skew
from hotrows.profile.measure import HOT_SHARE, Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, QUIET, BLUE, ORANGE, PAPER = "#1b2733", "#8c99a6", "#2563a8", "#e07b39", "#ffffff"
STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "grid.color": "#e6eaee",
}


def plot(profile: Profile, path: str | Path) -> None:
    """Draw how ids are used, what deduplication keeps, and the misses by cache size.

    Args:
        path: its ending decides the format.
    """
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with style.context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.1)
        figure = Figure(figsize=(15, 4.8), facecolor=PAPER, layout=layout)
        use, kept, misses = figure.subplots(1, 3, width_ratios=[1.2, 0.8, 1.2])
        _draw_use(use, profile)
        _draw_deduplication(kept, profile)
        _draw_misses(misses, profile)
        figure.suptitle(
            f"{profile.data}: {len(profile.columns)} columns, {_short(profile.pooled.num_ids)} rows, "
            f"{_short(profile.num_samples)} samples read",
            x=0.01,
            ha="left",
            color=QUIET,
            fontsize=10,
        )
        figure.savefig(path, dpi=160)


def _draw_use(axes: "Axes", profile: Profile) -> None:
    seen: dict[str, Skew] = {column.table: column.skew for column in profile.columns}
    for number, skew in enumerate(seen.values()):
        label = "each table" if number == 0 else None
        axes.plot(*_points(skew), color=QUIET, alpha=0.45, lw=0.9, label=label)
    axes.plot(*_points(profile.pooled), color=BLUE, lw=2.6, label="all tables")
    hot = profile.pooled.ids_for(HOT_SHARE)
    if hot > 0:
        axes.plot([hot], [HOT_SHARE], "o", color=ORANGE, ms=7, zorder=5)
        # The curve rises to the right, so the text fits to the left of it, unless the curve starts there.
        left = hot > profile.pooled.num_ids**-0.6
        axes.annotate(
            f"{hot:.3%} of the ids\nget {HOT_SHARE:.0%} of the accesses",
            (hot, HOT_SHARE),
            xytext=(-14, 2) if left else (14, -14),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center" if left else "top",
            color=ORANGE,
        )
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.set_title("Few ids get most accesses")
    axes.set_xlabel("most frequent ids, share of all")
    axes.set_ylabel("share of accesses")
    axes.legend(frameon=False, loc="lower right")
    _percent(axes)
    _few_ticks(axes, lambda share: f"{share * 100:.6f}".rstrip("0").rstrip(".") + "%")


def _points(skew: Skew) -> tuple[list[float], list[float]]:
    """Points of the curve at whole numbers of ids, closer together than a picture can show."""
    ids = np.unique(np.geomspace(1, max(1, skew.num_ids), 200).round())
    shares = (ids / max(1, skew.num_ids)).tolist()
    return shares, [skew.share_of_top(share) for share in shares]


def _draw_deduplication(axes: "Axes", profile: Profile) -> None:
    sizes, shares = list(profile.deduplication), list(profile.deduplication.values())
    bars = axes.bar([f"{size:,}" for size in sizes], shares, color=BLUE, width=0.62)
    axes.bar_label(bars, [f"{share:.1%}" for share in shares], padding=4, color=INK)
    axes.set_ylim(0, max([*shares, 0.05]) * 1.18)
    axes.set_title("What deduplication keeps")
    axes.set_xlabel("batch size")
    axes.set_ylabel("unique rows per lookup")
    _percent(axes)


def _draw_misses(axes: "Axes", profile: Profile) -> None:
    low, high = min(profile.cache_sizes), max(profile.cache_sizes)
    sizes = np.geomspace(low, max(high, low + 1), 300)
    misses = np.array([profile.curve.at(size) for size in sizes])
    axes.plot(sizes, misses, color=BLUE, lw=2.6)
    axes.fill_between(sizes, misses, color=BLUE, alpha=0.08, lw=0)
    axes.axhline(profile.curve.fewest, color=QUIET, lw=1, ls=(0, (4, 3)))
    axes.annotate(
        f"first uses of a row, {profile.curve.fewest:.1%}",
        (low, profile.curve.fewest),
        xytext=(2, -5),
        textcoords="offset points",
        va="top",
        color=QUIET,
    )
    found = profile.suggestion
    if low <= found.rows <= high:
        axes.plot([found.rows], [1 - found.hit_rate], "o", color=ORANGE, ms=7, zorder=5)
        axes.annotate(
            f"suggested: {_short(found.rows)} rows, {found.share:.2%} of all\n{1 - found.hit_rate:.1%} misses",
            (found.rows, 1 - found.hit_rate),
            xytext=(0.98, 0.95),  # the curve falls, so the upper right corner is free
            textcoords="axes fraction",
            ha="right",
            va="top",
            color=ORANGE,
            arrowprops={"arrowstyle": "-", "color": ORANGE, "lw": 1, "shrinkB": 5, "relpos": (0.5, 0)},
        )
    axes.set_xscale("log")
    axes.set_ylim(0, min(1.0, max(misses.max() * 1.12, 0.05)))
    axes.set_title(f"Misses of an LRU cache, batches of {profile.batch_size:,}")
    axes.set_xlabel("rows in the cache")
    axes.set_ylabel("unique rows of a batch that miss")
    _percent(axes)
    _few_ticks(axes, _short)


def _percent(axes: "Axes") -> None:
    from matplotlib.ticker import PercentFormatter

    axes.grid(True, axis="y")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _few_ticks(axes: "Axes", text: Callable[[float], str]) -> None:
    """Label a logarithmic axis at powers of ten, and at 2 and 5 times these if there are few of them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    decades = np.log10(high / low)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if decades > 3 else (1.0, 2.0, 5.0), numticks=6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _short(number: float) -> str:
    for unit, size in [("M", 10**6), ("K", 10**3)]:
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"
