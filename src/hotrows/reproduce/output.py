"""The files of an experiment: a CSV, a picture, and a JSON file with everything needed to judge it."""

import csv
import dataclasses
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

import hotrows
from hotrows.json_text import json_text
from hotrows.profile.plot import PAPER, STYLE
from hotrows.reproduce import draw
from hotrows.reproduce.bench import Bench
from hotrows.reproduce.experiment import Curve, Experiment, Result
from hotrows.train.run import choose_device


def describe(paper: str, experiment: Experiment, bench: Bench, result: Result) -> dict[str, Any]:
    """Everything of a result, for a JSON file."""
    return {
        "paper": paper,
        "figure": experiment.name,
        "title": experiment.title,
        "scale": bench.scale.name,
        "sizes": experiment.sizes(bench),
        "environment": environment(bench),
        "settings": result.settings,
        "columns": [dataclasses.asdict(column) for column in result.columns],
        "rows": result.rows,
        "claims": [{**dataclasses.asdict(claim), "verdict": claim.verdict} for claim in result.claims],
        "notes": result.notes,
    }


def write(directory: Path, paper: str, experiment: Experiment, bench: Bench, result: Result) -> dict[str, Any]:
    """Write NAME.csv, NAME.png and NAME.json, and NAME-curves.csv if there are curves. Returns the JSON's content."""
    directory.mkdir(parents=True, exist_ok=True)
    found = describe(paper, experiment, bench, result)
    stem = directory / experiment.name
    with stem.with_suffix(".csv").open("w", newline="") as file:
        table = csv.DictWriter(file, [column.key for column in result.columns])
        table.writeheader()
        table.writerows(result.rows)
    if result.curves:
        _write_curves(directory / f"{experiment.name}-curves.csv", result.curves)
    stem.with_suffix(".json").write_text(json_text(found, indent=1, ascii_only=False) + "\n")
    plot(stem.with_suffix(".png"), experiment, result, f"{found['environment']['hardware']}, {experiment.sizes(bench)}")
    return found


def plot(path: Path, experiment: Experiment, result: Result, caption: str) -> None:
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with style.context(STYLE):
        figure = Figure(figsize=(11, 4.8), facecolor=PAPER, layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.1))
        experiment.draw(figure, result)
        draw.caption(figure, caption)
        figure.savefig(path, dpi=140)


def environment(bench: Bench) -> dict[str, Any]:
    """The hardware, versions and commit that an experiment ran with."""
    device = choose_device(bench.device)
    cores = f"{os.cpu_count()} CPU cores"
    return {
        "hardware": f"{torch.cuda.get_device_name(device)}, {cores}" if device.type == "cuda" else cores,
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "hotrows": hotrows.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit(),
    }


def _write_curves(path: Path, curves: list[Curve]) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["curve", curves[0].x_title, curves[0].y_title])
        for curve in curves:
            table.writerows([curve.label, x, y] for x, y in zip(curve.x, curve.y, strict=True))


@cache
def commit() -> str | None:
    """The commit of a checkout, marked as dirty if files differ from it; None for an installed package.

    A copy of a checkout takes it from the variable HOTROWS_COMMIT. The result is cached, because files may change
    while experiments run.
    """
    if "HOTROWS_COMMIT" in os.environ:
        return os.environ["HOTROWS_COMMIT"]
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip() or None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
