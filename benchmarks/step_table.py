"""Judges the results of benchmarks/step.py by targets, and makes tables of them for docs/benchmarks.md.

`python benchmarks/step_table.py RESULTS.json...` prints the tables as Markdown.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GB = 1e9
FIGURES = {
    "over_device": "samples/s over `device`",
    "over_fbgemm_cached": "samples/s over the best cached FBGEMM",
    "over_cached_embedding": "samples/s over the best CachedEmbedding",
    "ms_per_step": "ms/step",
    "gpu_gb": "GPU memory, GB",
    "spread": "slowest over fastest, less 1",
    "bytes_per_cached_row": "bytes of GPU memory per cached row, besides the row",
    "bytes_per_table_row": "bytes of GPU memory per table row",
}
TITLES = (
    "tables", "batch", "system", "ms/step", "samples/s", "GPU memory, GB", "hit rate", "MB a step in / out",
    "over `device`", "hotrows over it",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A figure that hotrows must reach in a shape of this scale. Without a batch size it is about the whole shape."""

    shape: str
    figure: str
    limit: float
    at_most: bool = False
    optimizer: str | None = None
    batch_size: int | None = None
    scale: float = 1.0

    def judge(self, found: float | None) -> str:
        if found is None:
            return "not measured"
        excess = found - self.limit if self.at_most else self.limit - found
        if excess <= (0 if self.limit else 0.001):  # the allocator rounds sizes
            return "ok"
        return f"MISSED by {f'{excess / self.limit:.1%}' if self.limit else f'{excess:.3f}'}"


def _by_batch(shape: str, figure: str, limits: dict[int, float], **options: Any) -> list[Target]:
    return [Target(shape, figure, limit, batch_size=size, **options) for size, limit in limits.items()]


TARGETS = [
    *(
        target
        for optimizer in ("sgd", "adam")
        for target in _by_batch(
            "kaggle", "over_device", dict.fromkeys((1024, 4096, 16384, 65536), 0.95), optimizer=optimizer
        )
    ),
    *_by_batch("kaggle", "over_fbgemm_cached", {1024: 6, 16384: 2.5}, optimizer="sgd"),
    *_by_batch("kaggle", "over_fbgemm_cached", {1024: 6, 16384: 4}, optimizer="adam"),
    *_by_batch("kaggle", "over_cached_embedding", {1024: 8, 16384: 5}, optimizer="sgd"),
    *_by_batch("terabyte", "ms_per_step", {16384: 2.0}, at_most=True),
    *_by_batch("terabyte", "gpu_gb", {16384: 5.0}, at_most=True),
    *_by_batch("wide-deep", "ms_per_step", {1024: 0.21, 2048: 0.28, 4096: 0.47, 8192: 0.86}, at_most=True),
    Target("rows", "spread", 0.05, at_most=True),
    Target("memory", "bytes_per_cached_row", 64, at_most=True),
    Target("memory", "bytes_per_table_row", 0, at_most=True),
]


def judge(shapes: dict[str, Any]) -> list[dict[str, Any]]:
    """Judge all targets of the shapes that were run."""
    verdicts = []
    for target in TARGETS:
        shape = shapes.get(target.shape)
        if shape is None or shape["scale"] != target.scale:
            continue
        if target.batch_size is None:
            values = [shape["figures"].get(target.figure)]
        else:
            values = [
                point["figures"].get(target.figure)
                for case in shape["cases"]
                for point in case["points"]
                if point["batch_size"] == target.batch_size and target.optimizer in (None, case["optimizer"])
            ]
        verdicts += [{**dataclasses.asdict(target), "found": value, "verdict": target.judge(value)} for value in values]
    return verdicts


def failures(shapes: dict[str, Any], targets: list[dict[str, Any]]) -> list[str]:
    """The reasons for an exit code other than 0."""
    found = [
        f"{' '.join(row[:4])} {row[4]}"
        for row in target_rows(verdict for verdict in targets if "MISSED" in verdict["verdict"])
    ]
    for shape in shapes.values():
        if "failed" in shape:
            found.append(shape["failed"])
        for case in shape.get("cases", ()):
            for point in case["points"]:
                if point["identity"]["identical"] is False:
                    found.append(identity_line(case, point))
                for key in ("hotrows", "device"):
                    if reason := point["systems"].get(key, {}).get("failed"):
                        where = f"{case['label']} {case['optimizer']} {point['batch_size']}"
                        found.append(f"{key} failed, {where}: {reason}")
    return found


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def point_rows(case: dict[str, Any], point: dict[str, Any]) -> list[list[str]]:
    """A row of the table for each system that ran, with hotrows and the ceiling first."""
    found = {key: entry for key, entry in point["systems"].items() if "ms_per_step" in entry}
    ours, device = found.get("hotrows"), found.get("device")
    order = sorted(found, key=lambda key: (key not in ("hotrows", "device"), key != "hotrows"))
    return [
        [
            case["label"],
            f"{point['batch_size']:,}",
            key,
            f"{found[key]['ms_per_step']:.3f}",
            f"{found[key]['samples_per_s']:,.0f}",
            _number(found[key].get("gpu_bytes"), GB, ".2f"),
            _number(found[key].get("hit_rate"), 1, ".4f"),
            _moved(found[key]),
            _over(found[key], device),
            _over(ours, found[key]),
        ]
        for key in order
    ]


def not_run(cases: Iterable[dict[str, Any]]) -> list[str]:
    """A line for every system without figures at some batch sizes, with the reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        for point in case["points"]:
            for key, entry in point["systems"].items():
                reason = entry.get("missing") or entry.get("failed")
                if reason:
                    status = "missing" if "missing" in entry else "failed"
                    reasons.setdefault((key, f"{status}: {reason}"), []).append(
                        f"{case['optimizer']} {point['batch_size']}"
                    )
    return [f"`{key}` {reason} ({', '.join(where)})" for (key, reason), where in reasons.items()]


def identity_line(case: dict[str, Any], point: dict[str, Any]) -> str:
    found = point["identity"]
    where = f"{case['label']}, batch {point['batch_size']:,}, {case['optimizer']}"
    if found["identical"] is None:
        return f"{where}: not compared with `device`, {found['reason']}"
    if not found["identical"]:
        return f"{where}: DIFFERENT from `device`: {found['reason']}"
    return (
        f"{where}: IDENTICAL to `device` after {found['num_steps']:,} steps: losses, dense parameters, "
        f"{found['num_rows']:,} rows with their optimizer state"
    )


def target_rows(targets: Iterable[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            " ".join(str(part) for part in (t["shape"], t["optimizer"], t["batch_size"]) if part is not None),
            FIGURES[t["figure"]],
            f"{'≤' if t['at_most'] else '≥'} {t['limit']:g}",
            "not measured" if t["found"] is None else f"{t['found']:.4g}",
            t["verdict"],
        ]
        for t in targets
    ]


def render_shape(name: str, shape: dict[str, Any]) -> str:
    parts = [f"### {name}"]
    cases = shape.get("cases", [])
    for optimizer in dict.fromkeys(case["optimizer"] for case in cases):
        mine = [case for case in cases if case["optimizer"] == optimizer]
        first = mine[0]
        parts.append(f"{first['model']}, dim {first['dim']}, {optimizer}, {first['precision']}:")
        parts.append(
            table(TITLES, [row for case in mine for point in case["points"] for row in point_rows(case, point)])
        )
    if cases:
        parts.append("\n".join(f"- {identity_line(case, point)}" for case in cases for point in case["points"]))
    if lines := not_run(cases):
        parts.append("Without figures:\n" + "\n".join(f"- {line}" for line in lines))
    if builds := shape.get("builds"):
        parts.append(table(list(builds[0]), [[_plain(value) for value in build.values()] for build in builds]))
    if figures := shape.get("figures"):
        parts.append("\n".join(f"- {FIGURES.get(key, key)}: {_figure(value)}" for key, value in figures.items()))
    return "\n\n".join(parts)


def render(results: dict[str, Any]) -> str:
    """All tables of one file of results."""
    environment = results["environment"]
    heading = ", ".join(f"{key} {value}" for key, value in environment.items())
    parts = [heading, *(render_shape(name, shape) for name, shape in results["shapes"].items())]
    if results["targets"]:
        titles = ("shape", "figure", "wanted", "found", "")
        parts += ["### Wanted and found", table(titles, target_rows(results["targets"]))]
    return "\n\n".join(parts)


def _number(value: float | None, unit: float, form: str) -> str:
    return "" if value is None else format(value / unit, form)


def _plain(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _figure(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4g}"


def _moved(entry: dict[str, Any]) -> str:
    if entry.get("bytes_in") is None:
        return ""
    return f"{entry['bytes_in'] / 1e6:.2f} / {entry['bytes_out'] / 1e6:.2f}"


def _over(entry: dict[str, Any] | None, other: dict[str, Any] | None) -> str:
    if entry is None or other is None or entry is other:
        return ""
    return f"{entry['samples_per_s'] / other['samples_per_s']:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS.json")
    for path in parser.parse_args().results:
        print(render(json.loads(path.read_text())), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
