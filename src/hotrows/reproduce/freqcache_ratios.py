"""FreqCache, Fig 5 to 10: AUROC, memory and throughput at six cache ratios, on Criteo Kaggle and Avazu."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hotrows.profile.plot import QUIET
from hotrows.reproduce import draw
from hotrows.reproduce.bench import Bench, Trained
from hotrows.reproduce.experiment import NOT_READABLE, Claim, Column, Experiment, Result, Row, number, speed_claim
from hotrows.reproduce.ids import NAMES
from hotrows.strategies.base import CacheSettings
from hotrows.strategies.freqcache import FreqCacheOptions
from hotrows.train.config import DenseOptimizerConfig, ModelConfig, OptimizerConfig, RunConfig, TrainConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATIOS = (0.3, 0.6, 1.5, 3.0, 32.0, 64.0)  # percent
DEFAULT = 1.5
SAVING = 0.8
MB = 1e6
SYNTHETIC_LABELS = "The labels are synthetic, so the AUROC itself says nothing about the paper's."


@dataclass(frozen=True)
class Case:
    """A data set as the paper trained it, and the range of the axis its values were drawn on."""

    shape: str
    batch_size: int
    lr: float
    auroc: str
    memory: str
    throughput: str


KAGGLE = Case("criteo-kaggle", 16_384, 1.0, "0.77 to 0.78", "0 to 20 GB", "40 to 80 iterations/s")
AVAZU = Case("avazu", 65_536, 0.05, "0.82 to 0.84", "0 to 6 GB", "60 to 100 iterations/s")

MODES = (Column("mode", "rows on the device"),)
BUFFER_ROWS = FreqCacheOptions().buffer_rows


def runs_of(case: Case, bench: Bench) -> dict[str, Trained]:
    """A run with all rows on the device, then one at each ratio.

    Fig 5, 7 and 9 show the same runs of one data set, and Fig 6, 8 and 10 those of the other.
    """
    batch_size = bench.scale.batch_size(case.batch_size)
    lr = min(case.lr, bench.scale.max_lr)
    data = bench.training_data(case.shape, batch_size)
    base = RunConfig(
        model=ModelConfig("dlrm:freqcache", bench.scale.dim, init="uniform"),
        optimizer=OptimizerConfig("sgd", lr),
        dense_optimizer=DenseOptimizerConfig("sgd", lr),
        train=TrainConfig(batch_size=batch_size),
        options={"freqcache": FreqCacheOptions(buffer_rows=buffer_rows(case, bench))},
    )
    found = {"all": bench.train(f"{case.shape}: all rows on the device", replace_run(base, "device"), data)}
    for ratio in RATIOS:
        config = replace_run(base, "freqcache", f"{ratio:g}%")
        found[f"{ratio:g}%"] = bench.train(f"{case.shape}: freqcache, {ratio:g}%", config, data)
    return found


def buffer_rows(case: Case, bench: Bench) -> int:
    """The rows of the transmitter's block, scaled down with the tables so that it is not larger than the cache."""
    return BUFFER_ROWS if case.shape in bench.given else max(1, round(BUFFER_ROWS * bench.scale.rows))


def replace_run(base: RunConfig, strategy: str, size: int | str = CacheSettings.size) -> RunConfig:
    """The same run with another strategy and cache. Its `train` section is a copy, because a bench changes it."""
    return replace(base, strategy=strategy, cache=replace(base.cache, size=size), train=replace(base.train))


def settings_of(case: Case, bench: Bench) -> dict[str, Any]:
    batch_size = bench.scale.batch_size(case.batch_size)
    return {
        "data": bench.training_data(case.shape, batch_size).name,
        "batch_size": batch_size,
        "steps": bench.num_steps,
        "model": "dlrm:freqcache",
        "buffer_rows": buffer_rows(case, bench),
        "optimizer": "sgd",
        "lr": min(case.lr, bench.scale.max_lr),
        "precision": bench.precision,
    }


def accuracy(case: Case, bench: Bench) -> Result:
    rows: list[Row] = []
    for mode, trained in runs_of(case, bench).items():
        auc = {split: _auc(trained, split) for split in ("valid", "test")}
        rows.append({"mode": mode, **auc, "loss": trained.summary["train"]["loss"], "published": NOT_READABLE})
    first = rows[0]
    different = [row["mode"] for row in rows if any(row[key] != first[key] for key in ("valid", "test", "loss"))]
    splits = [split for split in ("valid", "test") if first[split] is not None]  # there may be no validation split
    far = max(abs(number(row[key]) - number(first[key])) for row in rows for key in splits)
    text = "AUROC of validation and test, and the training loss, are those of all rows on the device, in every digit"
    return Result(
        (
            *MODES,
            Column("valid", "AUROC, validation", ".12f"),
            Column("test", "AUROC, test", ".12f"),
            Column("loss", "training loss", ".12f"),
            Column("published", "paper", "", published=True),
        ),
        rows,
        [
            Claim(text, not different, "different at " + ", ".join(map(str, different)) if different else "identical"),
            Claim("a model was learned: AUROC of the test above 0.55", number(first["test"]) > 0.55,
                  f"{number(first['test']):.4f}"),
        ],
        settings=settings_of(case, bench),
        notes=[
            f"Paper: bars on an axis from {case.auroc}; all differences less than 0.01. Ours differ by {far:g}.",
            *([] if case.shape in bench.given else [SYNTHETIC_LABELS]),
        ],
    )  # fmt: skip


def memory(case: Case, bench: Bench) -> Result:
    rows: list[Row] = []
    found = runs_of(case, bench)
    whole = found["all"].memory
    for mode, trained in found.items():
        taken = trained.memory
        published = f"saves about {SAVING:.0%}" if mode == f"{DEFAULT:g}%" else NOT_READABLE
        row: Row = {"mode": mode, "memory": taken.allocated / MB, "saved": 1 - taken.allocated / whole.allocated}
        if bench.on_gpu:
            row |= {
                "reserved": taken.reserved / MB,
                "reserved_saved": 1 - taken.reserved / whole.reserved,
                "most": taken.peak / MB,
                "most_saved": 1 - taken.peak / whole.peak,
            }
        rows.append({**row, "published": published})
    default = next(row for row in rows if row["mode"] == f"{DEFAULT:g}%")
    saved, at_most = number(default["saved"]), number(default["most_saved"]) if bench.on_gpu else 0.0
    on_gpu = (
        Column("reserved", "reserved then, MB", ",.1f"),
        Column("reserved_saved", "saved of that", ".1%"),
        Column("most", "most allocated, MB", ",.1f"),
        Column("most_saved", "saved of that", ".1%"),
    )
    notes = [f"Paper: bars on an axis from {case.memory}."]
    if bench.on_gpu:
        notes += [
            "Memory is counted as in the paper's published code, which reads what is allocated and reserved after the "
            "last iteration of an epoch. An iteration needs the same temporary memory with a cache and without one: of "
            f"the most that is allocated at any time, 1.5% saves {at_most:.1%}."
        ]
    else:
        notes += ["Memory is on a CPU: the bytes of cache, slots, index, the transmitter's block, and model."]
    return Result(
        (
            *MODES,
            Column("memory", "allocated after training, MB" if bench.on_gpu else "device memory, MB", ",.1f"),
            Column("saved", "saved", ".1%"),
            *(on_gpu if bench.on_gpu else ()),
            Column("published", "paper", "", published=True),
        ),
        rows,
        [
            Claim(
                "a cache of 1.5% saves at least 80% of the memory, counted as published"
                if bench.on_gpu
                else "a cache of 1.5% saves at least 80% of the memory",
                saved >= SAVING,
                f"{saved:.1%}",
            ),
        ],
        settings=settings_of(case, bench),
        notes=notes,
    )


def throughput(case: Case, bench: Bench) -> Result:
    rows: list[Row] = []
    batch_size = bench.scale.batch_size(case.batch_size)
    found = runs_of(case, bench)
    whole = found["all"].samples_per_second
    for mode, trained in found.items():
        speed = trained.samples_per_second
        published = "about 50% of TorchRec's" if mode == f"{DEFAULT:g}%" else NOT_READABLE
        rows.append(
            {"mode": mode, "iterations": speed / batch_size, "ms": 1000 * batch_size / speed, "samples": speed,
             "share": speed / whole, "hit_rate": trained.summary["cache"]["hit_rate"], "published": published}
        )  # fmt: skip
    shares = {row["mode"]: number(row["share"]) for row in rows}
    default, best = shares[f"{DEFAULT:g}%"], max(share for mode, share in shares.items() if mode != "all")
    return Result(
        (
            *MODES,
            Column("iterations", "iterations/s", ",.2f"),
            Column("ms", "ms/iteration", ",.2f"),
            Column("samples", "samples/s", ",.0f"),
            Column("share", "of all rows on the device", ".1%"),
            Column("hit_rate", "hit rate", ".1%"),
            Column("published", "paper", "", published=True),
        ),
        rows,
        [
            speed_claim(bench, "a cache of 1.5% has half of the throughput of all rows on the device, or more (paper: "
                        "about half)", default >= 0.5, f"{default:.1%}"),
            speed_claim(bench, "a cache of 1.5% is nearly the best ratio: 80% of the best or more",
                        default >= 0.8 * best, f"{default / best:.1%}", "on a CPU the model takes most of the time"),
        ],
        settings=settings_of(case, bench),
        notes=[
            f"{bench.timing} Paper: an axis from {case.throughput}. "
            "Hit rate: of the unique rows of a batch."
        ],
    )  # fmt: skip


def draw_accuracy(figure: "Figure", result: Result) -> None:
    (axes,) = draw.axes_of(figure)
    modes = result.values("mode")
    series = {"validation": result.values("valid"), "test": result.values("test")}
    series = {name: values for name, values in series.items() if None not in values}
    draw.bars(axes, modes, series, lambda value: f"{value:.5f}", colors=draw.SHADES[1:3])
    values = [value for each in series.values() for value in each]
    low, high = min(values), max(values)
    margin = max(high - low, 0.01)
    axes.set_ylim(low - margin, high + margin)
    draw.legend_above(axes)
    draw.titled(axes, "AUROC by cache ratio", "rows on the device", "AUROC (axis does not begin at 0)")


def draw_memory(figure: "Figure", result: Result) -> None:
    (axes,) = draw.axes_of(figure)
    series = {"allocated after training": result.values("memory")}
    if "most" in result.rows[0]:
        series["at most"] = result.values("most")
    draw.bars(axes, result.values("mode"), series, lambda value: f"{value:,.0f}", colors=draw.SHADES[2:0:-1])
    if len(series) > 1:
        draw.legend_above(axes)
    else:
        axes.patches[0].set_color(QUIET)
    draw.level(axes, (1 - SAVING) * result.values("memory")[0], "paper, 1.5%:\n80% saved")
    draw.thousands(axes)
    draw.titled(axes, "Device memory by cache ratio", "rows on the device", "MB")


def draw_throughput(figure: "Figure", result: Result) -> None:
    (axes,) = draw.axes_of(figure)
    draw.bars(axes, result.values("mode"), {"ours": result.values("iterations")}, lambda value: f"{value:,.1f}")
    axes.patches[0].set_color(QUIET)
    draw.level(axes, 0.5 * result.values("iterations")[0], "paper, 1.5%:\nabout half")
    draw.titled(axes, "Throughput by cache ratio", "rows on the device", "iterations/s")


def _auc(trained: Trained, split: str) -> float | None:
    found = trained.summary[split]
    return None if found is None else float(found["auc"])


def _experiment(case: Case, figure: int, what: str, about: str, run: Any, picture: Any) -> Experiment:
    title = f"Fig {figure}: {what} on {NAMES[case.shape]} by cache ratio"
    return Experiment(f"fig{figure}", title, about, partial(run, case), picture, data=(case.shape,))


RATIO_EXPERIMENTS = tuple(
    _experiment(case, first + offset, what, about, run, picture)
    for first, what, about, run, picture in (
        (5, "AUROC", "Is the AUROC that of all rows on the device?", accuracy, draw_accuracy),
        (7, "memory", "How much device memory a cache saves.", memory, draw_memory),
        (9, "throughput", "What of the throughput a cache keeps.", throughput, draw_throughput),
    )
    for offset, case in enumerate((KAGGLE, AVAZU))
)
