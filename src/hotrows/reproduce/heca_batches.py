"""HECA, Fig 6, 7 with Table 2, and 10: losses and times by batch size."""

from typing import TYPE_CHECKING

from hotrows.profile.plot import BLUE, ORANGE, QUIET
from hotrows.reproduce import draw
from hotrows.reproduce.bench import Bench
from hotrows.reproduce.experiment import (
    NOT_READABLE,
    Claim,
    Column,
    Curve,
    Experiment,
    Result,
    Row,
    number,
    speed_claim,
)
from hotrows.reproduce.heca_runs import BATCH_SIZES, DEFAULT_CACHE, settings_of, speeds, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSS_BATCH_SIZES = (4096, 8192)

# Table 2: HECA and HugeCTR by batch size, read as ms per iteration.
TABLE_2 = {
    "A100": ((0.21, 0.28, 0.47, 0.86), (0.86, 0.95, 1.17, 1.63)),
    "4090": ((0.36, 0.66, 0.88, 1.68), (1.12, 1.27, 1.61, 2.01)),
    "2080Ti": ((0.42, 0.67, 1.18, 2.08), (2.47, 2.71, 3.16, 4.07)),
}
STAGES = {"load": "loader", "collect": "collector", "train": "trainer", "iteration": "wall"}


def fig_6(bench: Bench) -> Result:
    rows: list[Row] = []
    curves: list[Curve] = []
    claims: list[Claim] = []
    for size in LOSS_BATCH_SIZES:
        found = {name: train(bench, name, size) for name in ("heca", "device")}
        for name, trained in found.items():
            steps, losses = ([record[key] for record in trained.records] for key in ("step", "loss"))
            curves.append(Curve(f"{name}, batch {bench.scale.batch_size(size):,}", "step", "loss", steps, losses))
            rows.append(
                {"batch": bench.scale.batch_size(size), "strategy": name, "first": losses[0], "last": losses[-1],
                 "published": NOT_READABLE}
            )  # fmt: skip
        ours, baseline = curves[-2].y, curves[-1].y
        differ = [abs(a - b) for a, b in zip(ours, baseline, strict=True) if a != b]
        claims += [
            Claim(
                f"batch {bench.scale.batch_size(size):,}: every loss of heca is that of all rows on the device",
                not differ,
                f"{len(differ)} of {len(ours)} differ, by up to {max(differ):.2g}"
                if differ
                else f"all {len(ours)} identical",
            ),
            Claim(
                f"batch {bench.scale.batch_size(size):,}: the loss falls",
                ours[-1] < ours[0],
                f"{ours[0]:.4f} to {ours[-1]:.4f}",
            ),
        ]
    return Result(
        (
            Column("batch", "batch", ",d"),
            Column("strategy", "strategy"),
            Column("first", "loss at the start", ".6f"),
            Column("last", "loss at the end", ".6f"),
            Column("published", "paper", "", published=True),
        ),
        rows,
        claims,
        curves,
        settings_of(bench),
        ["The paper compares with HugeCTR, curves that 'closely match'; heca is exact here, as its default is."],
    )


def draw_fig_6(figure: "Figure", result: Result) -> None:
    for axes, (ours, baseline) in zip(
        draw.axes_of(figure, len(result.curves) // 2),
        zip(result.curves[::2], result.curves[1::2], strict=True),
        strict=True,
    ):
        axes.plot(baseline.x, baseline.y, color=ORANGE, lw=6, alpha=0.45, label="all rows on the device")
        axes.plot(ours.x, ours.y, color=BLUE, lw=1.8, label="heca")
        axes.grid(True)
        axes.legend(frameon=False)
        draw.titled(axes, f"Training loss, {ours.label.split(', ')[1]}", "step", "loss")


def fig_7(bench: Bench) -> Result:
    rows: list[Row] = []
    names = ("heca", "host", "device")
    found = speeds(bench, [(name, size, DEFAULT_CACHE) for size in BATCH_SIZES for name in names])
    for i, size in enumerate(BATCH_SIZES):
        speed = {name: found[name, size, DEFAULT_CACHE] for name in names}
        batch = bench.scale.batch_size(size)
        row: Row = {"batch": batch, "samples": speed["heca"]}
        row |= {f"{name}_ms": 1000 * batch / speed[name] for name in speed}
        row["speedup"] = speed["heca"] / speed["host"]
        for card, (ours, hugectr) in TABLE_2.items():
            row |= {f"paper_{card}": ours[i], f"hugectr_{card}": hugectr[i]}
        row["paper_speedup"] = TABLE_2["A100"][1][i] / TABLE_2["A100"][0][i]
        rows.append(row)
    speedups = [number(row["speedup"]) for row in rows]
    mean = sum(speedups) / len(speedups)
    return Result(
        (
            Column("batch", "batch", ",d"),
            Column("heca_ms", "heca, ms/iteration", ",.3f"),
            Column("samples", "heca, samples/s", ",.0f"),
            Column("host_ms", "host, ms/iteration", ",.3f"),
            Column("device_ms", "device, ms/iteration", ",.3f"),
            Column("speedup", "heca over host", ".2f"),
            *(Column(f"paper_{card}", f"paper, {card}", ".2f", published=True) for card in TABLE_2),
            *(Column(f"hugectr_{card}", f"HugeCTR, {card}", ".2f", published=True) for card in TABLE_2),
            Column("paper_speedup", "paper over HugeCTR, A100", ".2f", published=True),
        ),
        rows,
        [
            speed_claim(
                bench,
                "heca is faster than rows on the host at every batch size",
                all(speedup > 1 for speedup in speedups),
                f"{min(speedups):.2f} to {max(speedups):.2f}, mean {mean:.2f}",
                "on a CPU the host is the device",
            )
        ],
        settings=settings_of(bench) | {"cache_rows": bench.scale.cache_rows(DEFAULT_CACHE)},
        notes=[
            "Table 2's unit cannot be right: 0.21 seconds for 30,000 iterations would be 7 µs each. Read as seconds "
            "per 1,000 iterations, which is ms per iteration. The paper's baseline is HugeCTR, ours `host`: rows and "
            "their optimizer on the CPU.",
            bench.timing,
        ],
    )


def draw_fig_7(figure: "Figure", result: Result) -> None:
    (axes,) = draw.axes_of(figure)
    series = {
        "heca": result.values("heca_ms"),
        "host": result.values("host_ms"),
        "device": result.values("device_ms"),
        "paper, A100": result.values("paper_A100"),
    }
    groups = [f"{size:,}" for size in result.values("batch")]
    draw.bars(axes, groups, series, lambda value: f"{value:.3g}", colors=(BLUE, QUIET, draw.SHADES[0], ORANGE))
    draw.legend_above(axes)
    shown = [value for values in series.values() for value in values]
    if max(shown) > 20 * min(shown):
        axes.set_yscale("log")
        axes.set_ylim(min(shown) / 2, max(shown) * 2)
    draw.titled(axes, "Time of an iteration", "batch size", "ms")


def fig_10(bench: Bench) -> Result:
    rows: list[Row] = []
    for size in BATCH_SIZES:
        batch = bench.scale.batch_size(size)
        found = train(bench, "heca", size).summary["strategy_outcome"]["stages_ms"]
        times: Row = {key: found[stage] for key, stage in STAGES.items()}
        times["sum"] = sum(found[stage] for stage in ("loader", "collector", "trainer"))
        rows.append({"batch": batch, **times, "published": NOT_READABLE})
    hidden = [1 - number(row["iteration"]) / number(row["sum"]) for row in rows]
    return Result(
        (
            Column("batch", "batch", ",d"),
            Column("load", "load, ms", ",.3f"),
            Column("collect", "collect, ms", ",.3f"),
            Column("train", "train, ms", ",.3f"),
            Column("iteration", "with the pipeline, ms", ",.3f"),
            Column("sum", "sum of the stages, ms", ",.3f"),
            Column("published", "paper", "", published=True),
        ),
        rows,
        [
            speed_claim(
                bench,
                "an iteration takes less than the sum of its stages",
                all(share > 0 for share in hidden),
                f"{min(hidden):.1%} to {max(hidden):.1%} less",
                "on a CPU rows are planned by the thread that trains",
            )
        ],
        settings=settings_of(bench) | {"cache_rows": bench.scale.cache_rows(DEFAULT_CACHE)},
        notes=[
            "Mean times of the stages while they overlap, after the warm-up. Paper, in words: the trainer takes a "
            "little longer than each of the other two stages, and hides them."
        ],
    )


def draw_fig_10(figure: "Figure", result: Result) -> None:
    axes = draw.axes_of(figure)[0]
    series = {
        "load": result.values("load"),
        "collect": result.values("collect"),
        "train": result.values("train"),
        "with the pipeline": result.values("iteration"),
        "sum of the stages": result.values("sum"),
    }
    groups = [f"{size:,}" for size in result.values("batch")]
    colors = (*draw.SHADES[:3], draw.SHADES[3], ORANGE)
    draw.bars(axes, groups, series, lambda value: f"{value:.2g}", colors=colors)
    axes.legend(frameon=False, loc="upper left")
    draw.titled(axes, "Time of the stages", "batch size", "ms per iteration")


FIG_6 = Experiment("fig6", "Fig 6: training loss", "Is the loss that of all rows on the device?", fig_6, draw_fig_6)
FIG_7 = Experiment(
    "fig7",
    "Fig 7 and Table 2: time of an iteration",
    "ms per iteration and samples/s by batch size.",
    fig_7,
    draw_fig_7,
    also=("table2",),
)
FIG_10 = Experiment("fig10", "Fig 10: time of the stages", "What the pipeline hides.", fig_10, draw_fig_10)
