"""How fast does prepare read a Criteo log compared with pandas, and does it keep to its memory limit?

Both make the same data set from the same generated file: log(1 + x) of the integers, ids by falling frequency in the
first 80% of the rows with rare and missing ids, and Parquet for three splits. pandas does it with value_counts and map,
which is its fastest way. Each runs in a process of its own, and imports are not timed. The second part prepares a file
of three times the memory limit.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from environment import describe, print_heading, write_json

from hotrows.json_text import json_text

MIN_COUNT = 2
MIN_SPEEDUP = 3.0
EXTRA_BYTES = 1_000_000_000  # a process may use this much more than the memory limit


def with_hotrows(log: Path, out: Path, memory_limit: str) -> float:
    # The first use imports the engine.
    from hotrows.data.prepare import prepare
    from hotrows.data.prepare.engines import duckdb as duckdb

    start = time.perf_counter()
    prepare("criteo", log, out, min_count=MIN_COUNT, valid=0.1, test=0.1, memory_limit=memory_limit)
    return time.perf_counter() - start


def with_pandas(log: Path, out: Path, memory_limit: str) -> float:
    import numpy as np
    import pandas as pd
    import pyarrow.parquet as pyarrow_parquet

    del memory_limit, pyarrow_parquet
    start = time.perf_counter()
    integers = [f"I{number}" for number in range(1, 14)]
    categories = [f"C{number}" for number in range(1, 27)]
    types = {"label": "float32", **dict.fromkeys(integers, "float64"), **dict.fromkeys(categories, "str")}
    frame = pd.read_csv(log, sep="\t", header=None, names=list(types), dtype=types)
    assert frame["label"].isin([0, 1]).all()
    num_train = int(len(frame) * 0.8)
    (out / "vocabulary").mkdir(parents=True)
    for name in integers:
        frame[name] = np.log1p(frame[name].fillna(0).clip(lower=0)).astype("float32")
    for name in categories:
        counts = frame[name].iloc[:num_train].value_counts().rename_axis("value").reset_index(name="count")
        kept = counts[counts["count"] >= MIN_COUNT].sort_values(["count", "value"], ascending=[False, True])
        kept["id"] = np.arange(2, len(kept) + 2, dtype="int32")
        kept.to_parquet(out / "vocabulary" / f"{name}.parquet")
        ids = frame[name].map(kept.set_index("value")["id"]).fillna(0).astype("int32")
        frame[name] = ids.mask(frame[name].isna(), 1).astype("int32")
    num_valid = int(len(frame) * 0.9)
    for split, rows in {
        "train": frame[:num_train],
        "valid": frame[num_train:num_valid],
        "test": frame[num_valid:],
    }.items():
        rows.to_parquet(out / f"{split}.parquet", row_group_size=65_536, compression="zstd", index=False)
    return time.perf_counter() - start


WAYS = {"hotrows": with_hotrows, "pandas": with_pandas}


def run(way: str, log: Path, memory_limit: str) -> dict[str, float]:
    """The seconds and the peak memory of one contestant, in a process of its own."""
    command = [sys.executable, __file__, "--way", way, "--log", str(log), "--memory-limit", memory_limit]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return result


def run_here(way: str, log: Path, memory_limit: str) -> None:
    with tempfile.TemporaryDirectory(dir=log.parent) as directory:
        before = time.process_time()
        seconds = WAYS[way](log, Path(directory) / "out", memory_limit)
        cpu = time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json_text({"seconds": seconds, "cpu_seconds": cpu, "peak_bytes": peak}))


def compare(directory: Path, num_rows: int, repeats: int) -> dict[str, Any]:
    from hotrows.data.sample import write_criteo_log

    log = directory / "log.txt"
    write_criteo_log(log, num_rows)
    print(f"{num_rows:,} rows, {log.stat().st_size / 1e6:,.0f} MB of text, best of {repeats} runs")
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way in WAYS:
            found[way].append(run(way, log, "4GB"))
    best = {way: min(runs, key=lambda result: result["seconds"]) for way, runs in found.items()}
    print(f"{'':10}{'rows/s':>12}{'seconds':>10}{'CPU s':>10}{'peak MB':>10}")
    for way, result in best.items():
        rate = num_rows / result["seconds"]
        times = f"{result['seconds']:10.2f}{result['cpu_seconds']:10.2f}"
        print(f"{way:10}{rate:12,.0f}{times}{result['peak_bytes'] / 1e6:10,.0f}")
    speedup = best["pandas"]["seconds"] / best["hotrows"]["seconds"]
    print(f"hotrows / pandas: {speedup:.2f}x (at least {MIN_SPEEDUP:g}x)")
    log.unlink()
    return {"num_rows": num_rows, "best": best, "speedup": speedup, "enough": speedup >= MIN_SPEEDUP}


def fill_memory(directory: Path, limit_mb: int) -> dict[str, Any]:
    from hotrows.data.sample import write_criteo_log

    log = directory / "large.txt"
    num_rows = 3 * limit_mb * 1_000_000 // 240
    write_criteo_log(log, num_rows)
    result = run("hotrows", log, f"{limit_mb}MB")
    size, peak = log.stat().st_size, result["peak_bytes"]
    log.unlink()
    enough = peak < limit_mb * 1_000_000 + EXTRA_BYTES
    print(
        f"\nlimit {limit_mb:,} MB, file {size / 1e6:,.0f} MB ({num_rows:,} rows): peak {peak / 1e6:,.0f} MB "
        f"(at most limit + 1,000), {num_rows / result['seconds']:,.0f} rows/s"
    )
    return {"limit_bytes": limit_mb * 1_000_000, "file_bytes": size, **result, "enough": enough}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the log that pandas also reads")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each; the best counts")
    parser.add_argument("--limit-mb", type=int, default=512, help="memory limit of the second part, 0 to leave it out")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--memory-limit", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        run_here(options.way, options.log, options.memory_limit)
        return 0
    environment = describe()
    print_heading(__doc__.splitlines()[0], environment)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        results["speed"] = compare(Path(name), options.rows, options.repeats)
        if options.limit_mb:
            results["memory"] = fill_memory(Path(name), options.limit_mb)
    if options.json:
        write_json(options.json, environment, results)
    return 0 if all(result["enough"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
