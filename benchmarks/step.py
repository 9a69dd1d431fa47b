"""How fast is a training step, compared with all rows on the GPU and with the systems people would use instead?

`python benchmarks/step.py SHAPE...`. All systems of a shape train the same model on the same batches in one process,
with warm caches. `device` has every row on the GPU and is the ceiling. After the timing at every batch size, the
flushed tables of hotrows are compared with its tables bit for bit. GPU memory is the peak that torch has allocated for
a system, with the capture of graphs and without the batches. The results are written after every measurement. The exit
code is 1 if a target is missed, tables differ, or hotrows or device fails.
"""

import argparse
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from environment import checked_device, describe, print_heading
from peers import PEERS
from step_parts import CALIBRATION, Case, Memory, Options, Schedule, Traffic, describe_error, free, say, time_steps
from step_systems import CACHED_EMBEDDING, Other, Ours, compare, make_bags
from step_table import TITLES, failures, identity_line, judge, not_run, point_rows, render_shape, table, target_rows
from torch import Tensor

import hotrows
from hotrows.data.shapes import CRITEO_KAGGLE, CRITEO_TERABYTE
from hotrows.json_text import json_text

WARM_UP = 80  # steps after the cache is full
CACHE_SHARE = 0.015
RATIOS = (0.003, 0.006, 0.015, 0.03, 0.32, 0.64)
NUM_ROWS = (3_000_000, 33_762_577, 187_767_399)
MEMORY_SLOTS = 8_000_000
MEMORY_DIM = 4
OURS = ("device", "hotrows")
FBGEMM_CACHED = [key for key in PEERS if key.startswith("fbgemm") and key != "fbgemm-hbm"]


class Report:
    """All results so far, and the file that they are written to."""

    def __init__(self, path: Path | None, environment: dict[str, Any], arguments: dict[str, Any]) -> None:
        self._path = path
        self.environment = environment
        self._arguments = arguments
        self.shapes: dict[str, Any] = {}
        self.targets: list[dict[str, Any]] = []

    def save(self) -> None:
        self.targets = judge(self.shapes)
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        found = {
            "environment": self.environment,
            "arguments": self._arguments,
            "shapes": self.shapes,
            "targets": self.targets,
        }
        new = self._path.with_name(self._path.name + ".new")
        new.write_text(json_text(found, indent=2) + "\n")
        new.replace(self._path)


def run_case(case: Case, options: Options, report: Report) -> None:
    """Run all systems of one case at every batch size. A system that fails is noted and not run any further."""
    say(f"{case.shape} {case.label}: {case.num_rows:,} rows, cache {case.slots:,}, {case.optimizer}")
    runner = _Runner(case, options, report)
    runner.run_ours()
    free()
    if case.shape == "kaggle":
        runner.run_peers()
    print(table(TITLES, [row for point in runner.points for row in point_rows(runner.entry, point)]))
    for line in not_run([runner.entry]):
        print(f"without figures: {line}")
    print(flush=True)
    free()


class _Runner:
    def __init__(self, case: Case, options: Options, report: Report) -> None:
        self._case, self._options, self._report = case, options, report
        self._traffic = {size: Traffic(case, size, options) for size in case.batch_sizes}
        say(f"  batches drawn: {', '.join(f'{len(t.pool)} of {size}' for size, t in self._traffic.items())}")
        self.points: list[dict[str, Any]] = [
            {
                "batch_size": size,
                "systems": {},
                "identity": {"identical": None, "reason": "not both have run"},
                "figures": {},
            }
            for size in case.batch_sizes
        ]
        self.entry = {
            "label": case.label,
            "optimizer": case.optimizer,
            "model": case.model,
            "dim": case.dim,
            "precision": options.precision,
            "num_rows": case.num_rows,
            "slots": case.slots,
            "depth": options.depth,
            "window": options.window,
            "points": self.points,
        }
        report.shapes[case.shape]["cases"].append(self.entry)

    def run_ours(self) -> None:
        alive: dict[str, Ours] = {}
        for key in OURS:
            if key in self._options.systems:
                built = self._build(key, lambda key=key: Ours(self._case, key, self._options))
                if built is not None:
                    alive[key] = built
        for point in self.points:
            traffic = self._traffic[point["batch_size"]]
            schedule = self._schedule(traffic)
            for key in list(alive):
                if not self._run(key, alive[key], point, schedule):
                    self._fail_rest(key, point)
                    del alive[key]
            if len(alive) == len(OURS):
                say("    comparing")
                try:
                    point["identity"] = compare(alive["hotrows"], alive["device"], self._options.device)
                except Exception as error:
                    point["identity"] = {"identical": False, "reason": f"comparing failed: {describe_error(error)}"}
                say(f"    {identity_line(self.entry, point)}")
            self._report.save()

    def run_peers(self) -> None:
        frequencies = self._frequencies()
        for key in PEERS:
            if key not in self._options.systems:
                continue
            reason = PEERS[key].missing(self._case.optimizer, self._options.device)
            if reason is not None:
                say(f"  {key} missing: {reason}")
                for point in self.points:
                    point["systems"][key] = {"missing": reason}
                continue
            peer = self._build(key, lambda key=key: Other(self._case, key, self._options, frequencies))
            if peer is None:
                continue
            for point in self.points:
                traffic = self._traffic[point["batch_size"]]
                schedule = self._schedule(traffic)
                if key == "naive":
                    schedule = Schedule(warm_up=2, steps=1, seconds=0, calibration=0)
                if not self._run(key, peer, point, schedule):
                    self._fail_rest(key, point)
                    break
            try:
                peer.close()
            except Exception as error:
                say(f"  {key} could not be closed: {describe_error(error)}")
            del peer
            free()

    def _schedule(self, traffic: Traffic) -> Schedule:
        fixed = self._options.steps
        short = fixed is not None and self._options.device.type == "cpu"  # a CPU has no graphs to capture
        warm_up = traffic.num_filling + (fixed if short else WARM_UP)
        return Schedule(warm_up, fixed, self._options.seconds, CALIBRATION if fixed is None else 0)

    def _build(self, key: str, build: Callable[[], Any]) -> Any:
        say(f"  building {key}")
        try:
            built = build()
        except Exception as error:
            for point in self.points:
                point["systems"][key] = {"failed": f"building it: {describe_error(error)}"}
            self._report.save()
        else:
            say(f"    built, {built.memory.owned / 1e9:.2f} GB on the GPU")
            return built
        free()
        return None

    def _run(self, key: str, system: Ours | Other, point: dict[str, Any], schedule: Schedule) -> bool:
        traffic = self._traffic[point["batch_size"]]
        say(f"  {key}, batch {traffic.batch_size}, {self._case.optimizer}")
        try:
            result = system.run(traffic, schedule)
        except Exception as error:
            point["systems"][key] = {"failed": describe_error(error)}
        else:
            point["systems"][key] = result
            say(f"    {result['ms_per_step']:.3f} ms a step")
            _say_notes(result)
        point["figures"] = _figures(point["systems"])
        self._report.save()
        return "failed" not in point["systems"][key]

    def _fail_rest(self, key: str, failed: dict[str, Any]) -> None:
        """Report the later batch sizes of a system as failed too: its state is not valid any more."""
        for point in self.points[self.points.index(failed) + 1 :]:
            point["systems"][key] = {"failed": f"not run: it failed at batch {failed['batch_size']}"}

    def _frequencies(self) -> Tensor | None:
        """How often each row is looked up in the batches of the largest size."""
        if not set(CACHED_EMBEDDING) & set(self._options.systems):
            return None
        starts = torch.tensor([0, *self._case.sizes[:-1]], device=self._options.device).cumsum(0)
        counts = torch.zeros(self._case.num_rows, dtype=torch.int64, device=self._options.device)
        traffic = self._traffic[max(self._traffic)]
        num = max(1, 65536 // traffic.batch_size)  # batches that are counted at once
        for start in range(0, len(traffic.pool), num):
            ids = torch.cat([batch.ids for batch in traffic.pool[start : start + num]])
            counts += torch.bincount((ids + starts).flatten(), minlength=self._case.num_rows)
        return counts.cpu()


def _say_notes(result: dict[str, Any]) -> None:
    graphs = result.get("graphs", {})
    if graphs.get("reason"):
        say(f"    not replayed from graphs: {graphs['reason']}")
    elif graphs:
        say(f"    {graphs['replayed']} steps replayed from graphs, {graphs['eager']} run eagerly")
    if result.get("cache_full") is False:
        say("    NOTE: the cache was not full when the timing began")


def _figures(systems: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """The figures that targets are about. A figure is None if a system was not run."""
    speed = {key: entry["samples_per_s"] for key, entry in systems.items() if "samples_per_s" in entry}
    if "hotrows" not in speed:
        return {}
    ours = systems["hotrows"]

    def over(keys: Sequence[str]) -> float | None:
        best = max((speed[key] for key in keys if key in speed), default=None)
        return None if best is None else speed["hotrows"] / best

    return {
        "over_device": over(["device"]),
        "over_fbgemm_cached": over(FBGEMM_CACHED),
        "over_cached_embedding": over(CACHED_EMBEDDING),
        "ms_per_step": ours["ms_per_step"],
        "gpu_gb": None if ours["gpu_bytes"] is None else ours["gpu_bytes"] / 1e9,
    }


def run_memory(batch_size: int, options: Options, report: Report) -> None:
    """Measure GPU memory besides the cache, from three collections: one base, ten times its rows, half its slots."""
    shape = report.shapes["memory"]
    sizes = scaled(KAGGLE, options.scale)
    slots = max(64, round(MEMORY_SLOTS * options.scale))
    cases = [
        Case("memory", label, tuple(size * factor for size in sizes), num, (batch_size,), drawn=sizes)
        for label, factor, num in (("base", 1, slots), ("rows", 10, slots), ("half", 1, slots // 2))
    ]
    traffic = None
    found = {}
    for case in cases:
        traffic = None
        free()
        traffic = Traffic(case, batch_size, options)
        say(f"memory {case.label}: {case.num_rows:,} rows, cache {case.slots:,}, index hash")
        found[case.label] = build = _measure_memory(case, traffic, options)
        shape["builds"].append(build)
        report.save()
    if options.device.type != "cuda":
        shape["figures"] = {"bytes_per_cached_row": None, "bytes_per_table_row": None}
        return
    base, rows, half = found["base"], found["rows"], found["half"]
    more_slots, more_rows = base["slots"] - half["slots"], rows["rows"] - base["rows"]
    built = base["bytes when built"] / base["slots"] - base["bytes a record"]
    trained = (base["peak bytes"] - half["peak bytes"]) / more_slots - base["bytes a record"]
    shape["figures"] = {
        "bytes_per_cached_row": max(built, trained),
        "bytes_per_cached_row_when_built": built,
        "bytes_per_cached_row_in_training": trained,
        "bytes_per_table_row": max(
            (rows[what] - base[what]) / more_rows for what in ("bytes when built", "peak bytes")
        ),
    }


def _measure_memory(case: Case, traffic: Traffic, options: Options) -> dict[str, Any]:
    memory = Memory(options.device)
    bags = make_bags(case, options, index="hash", dim=MEMORY_DIM)
    memory.end()
    built = memory.owned

    def step(batch: hotrows.Batch) -> Tensor:
        loss = bags(batch.ids).square().mean()
        loss.backward()
        return loss.detach()

    batches = hotrows.lookahead(traffic.stream(fill=True), bags, options.depth, options.window)
    schedule = Schedule(traffic.num_filling + (options.steps or WARM_UP), steps=1, seconds=0, calibration=0)
    with closing(batches):
        time_steps(batches, step, schedule, options.device)
    return {
        "label": case.label,
        "rows": case.num_rows,
        "slots": sum(cache.num_slots for cache in bags.caches),
        "bytes a record": bags.caches[0].store.layout.num_bytes,
        "bytes when built": built,
        "peak bytes": memory.peak() or 0,
        "evictions": int(bags.stats().evictions),
    }


KAGGLE = tuple(column.num_ids for column in CRITEO_KAGGLE.columns)
TERABYTE = tuple(column.num_ids for column in CRITEO_TERABYTE.columns)


def scaled(sizes: Sequence[int], scale: float) -> tuple[int, ...]:
    return tuple(max(1, round(size * scale)) for size in sizes)


def share(text: str) -> float:
    """Read a share of the rows: "1.5%" is 0.015."""
    if not text.endswith("%") or not 0 < (found := float(text[:-1]) / 100) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a share of the rows, such as 1.5%%")
    return found


def make_cases(
    shape: str, scale: float, cache: float, optimizers: Sequence[str], batch_sizes: Sequence[int] | None
) -> list[Case]:
    sizes = scaled(TERABYTE if shape == "terabyte" else KAGGLE, scale)
    batches = tuple(batch_sizes or BATCH_SIZES[shape])

    def slots(of: Sequence[int], ratio: float) -> int:
        return max(1, math.ceil(sum(of) * ratio))

    if shape == "kaggle":
        return [Case(shape, "Kaggle", sizes, slots(sizes, cache), batches, optimizer) for optimizer in optimizers]
    if shape == "wide-deep":
        return [Case(shape, "Kaggle", sizes, slots(sizes, cache), batches, model="wide-deep", dim=96)]
    if shape == "terabyte":
        return [Case(shape, "Terabyte", sizes, slots(sizes, cache), batches)]
    if shape == "ratio":
        return [Case(shape, f"cache {ratio:.1%}", sizes, slots(sizes, ratio), batches) for ratio in RATIOS]
    assert shape == "rows", shape
    grown = [scaled(KAGGLE, scale * num / sum(KAGGLE)) for num in NUM_ROWS]
    fixed = min(slots(sizes, CACHE_SHARE), sum(grown[0]))
    return [Case(shape, f"{sum(of) / 1e6:.3g} M rows", of, fixed, batches, drawn=grown[0]) for of in grown]


def run_shape(shape: str, cases: list[Case], options: Options, report: Report) -> None:
    for case in cases:
        run_case(case, options, report)
    if shape == "rows":
        times = [
            point["figures"].get("ms_per_step") for case in report.shapes[shape]["cases"] for point in case["points"]
        ]
        known = [ms for ms in times if ms is not None]
        report.shapes[shape]["figures"]["spread"] = (
            max(known) / min(known) - 1 if known and len(known) == len(times) else None
        )
        report.save()


BATCH_SIZES = {
    "kaggle": (1024, 4096, 16384, 65536),
    "terabyte": (16384,),
    "wide-deep": (1024, 2048, 4096, 8192),
    "rows": (16384,),
    "ratio": (16384,),
    "memory": (16384,),
}


def describe_all(device: torch.device) -> dict[str, Any]:
    """`describe`, with the memory, driver and versions that matter on a GPU."""
    found = describe(str(device))
    if device.type != "cuda":
        return found
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = "unknown"
    import triton

    memory = f"{torch.cuda.get_device_properties(device).total_memory / 2**30:.0f} GiB"
    return {**found, "gpu_memory": memory, "driver": driver, "cuda": torch.version.cuda, "triton": triton.__version__}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    known = (*OURS, *PEERS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+", choices=tuple(BATCH_SIZES), metavar="SHAPE", help=", ".join(BATCH_SIZES))
    parser.add_argument("--batch-sizes", nargs="+", type=int, metavar="B", help="default: those of the shape")
    parser.add_argument(
        "--optimizers", nargs="+", choices=("sgd", "adam"), default=["sgd", "adam"], help="for the shape kaggle"
    )
    parser.add_argument("--systems", nargs="+", choices=known, default=known, metavar="SYSTEM", help=", ".join(known))
    parser.add_argument("--steps", type=int, help="steps of a repetition (default: by --seconds)")
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds that a repetition takes (default 0.5)")
    parser.add_argument(
        "--cache", type=share, default="1.5%", help="rows on the GPU, as a share of all (default 1.5%%)"
    )
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="tf32")
    parser.add_argument("--scale", type=float, default=1.0, help="the share of the tables' rows; targets are for 1")
    parser.add_argument("--device", default="cuda", help="cuda (default) or cpu")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results to this file")
    found = parser.parse_args(arguments)
    checked_device(parser, found.device)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    device = torch.device(given.device)
    torch.backends.cuda.matmul.allow_tf32 = given.precision != "fp32"
    options = Options(
        device, tuple(given.systems), given.precision, given.depth, given.window, given.steps, given.seconds,
        given.scale,
    )  # fmt: skip
    environment = describe_all(device)
    print_heading(__doc__.splitlines()[0], environment)
    shown_arguments = {key: value for key, value in vars(given).items() if key != "json"}
    report = Report(given.json, environment, shown_arguments)
    for shape in dict.fromkeys(given.shapes):
        report.shapes[shape] = {"scale": given.scale, "figures": {}, "cases": []}
        try:
            if shape == "memory":
                report.shapes[shape]["builds"] = []
                run_memory((given.batch_sizes or BATCH_SIZES[shape])[0], options, report)
                print(render_shape(shape, report.shapes[shape]), flush=True)
            else:
                cases = make_cases(shape, given.scale, given.cache, given.optimizers, given.batch_sizes)
                run_shape(shape, cases, options, report)
        except Exception as error:
            report.shapes[shape]["failed"] = f"{shape}: {describe_error(error)}"
        report.save()
        free()
    print(table(("shape", "figure", "wanted", "found", ""), target_rows(report.targets)))
    missed = failures(report.shapes, report.targets)
    print("\n".join(["", f"{len(missed)} missed or failed", *missed]), flush=True)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
