"""The pictures' common parts: ours in blue, the paper's in orange."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hotrows.profile.plot import BLUE, INK, ORANGE, QUIET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHADES = ("#b5cde6", "#7ba7d4", "#2563a8", "#12365c")  # of ours, from small to large
LINE_WIDTH = 2.4

Write = Callable[[float], str]


def axes_of(figure: "Figure", number: int = 1) -> "list[Axes]":
    """Axes side by side."""
    found = figure.subplots(1, number, squeeze=False)
    return list(found[0])


def bars(
    axes: "Axes",
    groups: Sequence[str],
    series: Mapping[str, Sequence[Any]],
    write: Write | None,
    colors: Sequence[str] = (BLUE, ORANGE),
) -> None:
    """Groups of bars, one bar of each series in a group; what is not a number is left out."""
    width = 0.8 / len(series)
    largest = 0.0
    for number, (label, values) in enumerate(series.items()):
        places = [place + (number - (len(series) - 1) / 2) * width for place in range(len(groups))]
        shown = [(x, y) for x, y in zip(places, values, strict=True) if isinstance(y, int | float)]
        if not shown:
            continue
        heights = [y for _, y in shown]
        largest = max(largest, *heights)
        drawn = axes.bar([x for x, _ in shown], heights, width * 0.92, color=colors[number % len(colors)], label=label)
        if write is not None:
            behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # so that no line goes through them
            axes.bar_label(drawn, [write(y) for y in heights], padding=3, color=INK, fontsize=9, bbox=behind)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.grid(True, axis="y")
    if largest > 0:
        axes.set_ylim(0, largest * 1.16)


def legend_above(axes: "Axes") -> None:
    """Above the bars, where none of them can be hidden."""
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, fontsize=9, borderaxespad=0.2)


def legend_below(figure: "Figure", axes: "Axes", title: str) -> None:
    """One legend for all axes of a figure, under them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, title=title, frameon=False, loc="outside lower center", ncols=5, fontsize=9)


def level(axes: "Axes", height: float, text: str) -> None:
    """A dashed line with a few words at its right end: a value that a figure is compared with."""
    axes.axhline(height, color=ORANGE, lw=1.4, ls=(0, (4, 3)), zorder=1)
    axes.annotate(
        text, (1.0, height), xycoords=("axes fraction", "data"), xytext=(6, 0), textcoords="offset points",
        ha="left", va="center", color=ORANGE, fontsize=9,
    )  # fmt: skip


def percent(axes: "Axes", decimals: int = 0) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=decimals))


def thousands(axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def titled(axes: "Axes", title: str, x_title: str, y_title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x_title)
    axes.set_ylabel(y_title)


def caption(figure: "Figure", text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", color=QUIET, fontsize=9)
