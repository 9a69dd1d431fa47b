"""What the pictures have in common: ours in blue, the paper's in orange."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hotrows.profile.plot import BLUE, INK, ORANGE, QUIET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHADES = ("#b5cde6", "#7ba7d4", "#2563a8", "#12365c")  # for values of ours, from small to large
LINE_WIDTH = 2.4

Write = Callable[[float], str]


def axes_of(figure: "Figure", number: int = 1) -> "list[Axes]":
    """Divide a figure into axes side by side."""
    found = figure.subplots(1, number, squeeze=False)
    return list(found[0])


def bars(
    axes: "Axes",
    groups: Sequence[str],
    series: Mapping[str, Sequence[Any]],
    write: Write | None,
    colors: Sequence[str] = (BLUE, ORANGE),
) -> None:
    """Draw groups of bars. A group has one bar of each series; values that are not numbers are left out."""
    width = 0.8 / len(series)
    largest = 0.0
    for number, (label, values) in enumerate(series.items()):
        positions = [group + (number - (len(series) - 1) / 2) * width for group in range(len(groups))]
        shown = [(x, y) for x, y in zip(positions, values, strict=True) if isinstance(y, int | float)]
        if not shown:
            continue
        heights = [y for _, y in shown]
        largest = max(largest, *heights)
        drawn = axes.bar([x for x, _ in shown], heights, width * 0.92, color=colors[number % len(colors)], label=label)
        if write is not None:
            # The white box keeps lines from crossing the text.
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            axes.bar_label(drawn, [write(y) for y in heights], padding=3, color=INK, fontsize=9, bbox=box)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.grid(True, axis="y")
    if largest > 0:
        axes.set_ylim(0, largest * 1.16)


def legend_above(axes: "Axes") -> None:
    """Put the legend above the bars, where it hides none of them."""
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, fontsize=9, borderaxespad=0.2)


def legend_below(figure: "Figure", axes: "Axes", title: str) -> None:
    """Put one legend for all axes of a figure below them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, title=title, frameon=False, loc="outside lower center", ncols=5, fontsize=9)


def level(axes: "Axes", height: float, text: str) -> None:
    """Draw a dashed line with a text at its right end: a value that the figure is compared with."""
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
