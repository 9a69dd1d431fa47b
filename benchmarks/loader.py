"""How many samples per second do the loader and prepare reach, compared with pandas on the same files?

Makes a log of Criteo Kaggle's shape (13 numbers, 26 ids, from the synthetic data set). Each contestant reads it once on
two cores, in a process of its own, from opening the files to the last batch of tensors:

- hotrows: the loader, over Parquet shards in the format of `hotrows prepare`;
- pandas: `read_parquet` of the same files, sliced into batches (after `sample(frac=1)` if shuffled);
- pandas, raw log: `read_csv` of the same samples as Criteo's tab-separated text. Ids are hexadecimal text there, which
  is numbered (`factorize`) each time.

Memory is the largest resident size of the process, less its size after the imports. First of all, prepare is compared
by `benchmarks/prepare.py`. The exit code is 1 if a target is missed.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hotrows.json_text import json_text

CORES = 2
MIN_SPEEDUP = 5.0
NUM_DENSE, NUM_IDS = 13, 26
DENSE = [f"I{i + 1}" for i in range(NUM_DENSE)]
IDS = [f"C{i + 1}" for i in range(NUM_IDS)]
ROWS_PER_GROUP, GROUPS_PER_SHARD = 65_536, 8
RAW_SHARE = 10  # one in ten samples goes into the text file


def hotrows_batches(directory: Path, batch_size: int, shuffle: bool) -> Iterator[Any]:
    from hotrows.data.dataset import open_dataset

    yield from open_dataset(directory).loader("train", batch_size, shuffle=shuffle)


def pandas_batches(directory: Path, batch_size: int, shuffle: bool) -> Iterator[Any]:
    import pandas as pd

    frame = pd.read_parquet(directory / "train")
    yield from _slices(frame, batch_size, shuffle)


def pandas_raw_batches(directory: Path, batch_size: int, shuffle: bool) -> Iterator[Any]:
    import numpy as np
    import pandas as pd

    names = ["label", *DENSE, *IDS]
    types = {"label": "float32", **dict.fromkeys(DENSE, "float32"), **dict.fromkeys(IDS, "str")}
    frame = pd.read_csv(directory / "train.txt", sep="\t", names=names, dtype=types)
    for name in DENSE:
        frame[name] = np.log1p(frame[name].clip(lower=0))
    for name in IDS:
        frame[name] = pd.factorize(frame[name])[0]
    yield from _slices(frame, batch_size, shuffle)


def _slices(frame: Any, batch_size: int, shuffle: bool) -> Iterator[Any]:
    import numpy as np
    import torch

    if shuffle:
        frame = frame.sample(frac=1, random_state=0)
    for start in range(0, len(frame), batch_size):
        part = frame.iloc[start : start + batch_size]
        yield (
            torch.tensor(part[DENSE].to_numpy(np.float32)),  # a copy, because the arrays of pandas are read-only
            torch.from_numpy(part[IDS].to_numpy(np.int64)),
            torch.tensor(part["label"].to_numpy()),
        )


CONTESTANTS: dict[str, Callable[[Path, int, bool], Iterator[Any]]] = {
    "hotrows": hotrows_batches,
    "pandas": pandas_batches,
    "pandas, raw log": pandas_raw_batches,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--repeats", type=int, default=3, help="the median counts")
    parser.add_argument("--no-prepare", action="store_true", help="leave prepare out")
    parser.add_argument("--prepare-rows", type=int, default=1_000_000, help="lines of the log that is prepared")
    parser.add_argument("--limit-mb", type=int, default=512, help="memory limit of prepare, 0 to leave that part out")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--one", nargs=4, metavar=("CONTESTANT", "DIR", "BATCH", "SHUFFLE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, directory, batch_size, shuffle = arguments.one
        print(json_text(go_through(name, Path(directory), int(batch_size), shuffle == "True")))
        return 0
    from environment import describe, print_heading, write_json

    environment = describe()
    print_heading(__doc__.splitlines()[0], environment)
    prepared: dict[str, Any] = {}
    if not arguments.no_prepare:  # it comes first, while this process is small: it measures memory with `getrusage`
        prepared = run_prepare(arguments.prepare_rows, arguments.repeats, arguments.limit_mb)
    with tempfile.TemporaryDirectory() as made:
        results = load(Path(made), arguments.samples, arguments.batch_sizes, arguments.repeats)
    if arguments.json:
        found = {"samples": arguments.samples, "results": results, "prepare": prepared}
        write_json(arguments.json, environment, found)
    missed = [
        f"loader, batch {row['batch_size']} {_order(row['shuffle'])}: {row['ratio']:.2f}x, at least {MIN_SPEEDUP:g}x"
        for row in results
        if row["contestant"] == "hotrows" and row["ratio"] < MIN_SPEEDUP
    ]
    missed += [f"prepare, {part}" for part, result in prepared.items() if not result["enough"]]
    print(f"\nmissed: {'; '.join(missed)}" if missed else "\nall targets are met")
    return 1 if missed else 0


def load(directory: Path, samples: int, batch_sizes: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Print and return a row for each contestant, batch size and order."""
    size = write_log(directory, samples)
    print(f"loader, an epoch of {samples:,} samples on {CORES} cores")
    print(f"Parquet {size / 2**20:,.0f} MiB; the raw log has every {RAW_SHARE}th sample\n")
    heads = ("samples/s", "of pandas", "a CPU second", "memory")
    print(f"{'batch':>6} {'order':>9}  {'':16}" + "".join(f"{head:>14}" for head in heads))
    results = []
    for batch_size, shuffle in itertools.product(batch_sizes, (False, True)):
        found = compare(directory, batch_size, shuffle, repeats)
        for name, row in found.items():
            ratio = row["samples_per_second"] / found["pandas"]["samples_per_second"]
            results.append({"contestant": name, "batch_size": batch_size, "shuffle": shuffle, **row, "ratio": ratio})
            rate, cpu_rate = row["samples_per_second"], row["samples_per_cpu_second"]
            print(
                f"{batch_size:6} {_order(shuffle):>9}  {name:16}"
                f"{rate:14,.0f}{ratio:13.2f}x{cpu_rate:14,.0f}{row['memory'] / 2**20:10,.0f} MiB",
                flush=True,
            )
    return results


def run_prepare(num_rows: int, repeats: int, limit_mb: int) -> dict[str, Any]:
    """The results of `benchmarks/prepare.py`, by part."""
    import prepare

    print("prepare", flush=True)
    with tempfile.TemporaryDirectory() as made:
        found = {"speed": prepare.compare(Path(made), num_rows, repeats)}
        if limit_mb:
            found["memory"] = prepare.fill_memory(Path(made), limit_mb)
    print()
    return found


def _order(shuffle: bool) -> str:
    return "shuffled" if shuffle else "as stored"


def compare(directory: Path, batch_size: int, shuffle: bool, repeats: int) -> dict[str, dict[str, float]]:
    """Run the contestants alternately, so that other work on the machine affects all of them."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    for _, name in itertools.product(range(repeats), CONTESTANTS):
        command = [sys.executable, __file__, "--one", name, str(directory), str(batch_size), str(shuffle)]
        threads = {"OMP_NUM_THREADS": str(CORES), "ARROW_NUM_THREADS": str(CORES)}
        done = subprocess.run(command, env={**os.environ, **threads}, check=True, capture_output=True, text=True)
        runs[name].append(json.loads(done.stdout))
    return {name: {key: statistics.median(r[key] for r in found) for key in found[0]} for name, found in runs.items()}


def go_through(name: str, directory: Path, batch_size: int, shuffle: bool) -> dict[str, float]:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    import pandas as pd  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch  # noqa: F401

    import hotrows.data.loader  # noqa: F401

    before = largest_resident_size()
    begin, begin_cpu = time.perf_counter(), time.process_time()
    samples = sum(len(batch[2]) for batch in CONTESTANTS[name](directory, batch_size, shuffle))
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - begin_cpu
    return {
        "samples_per_second": samples / seconds,
        "samples_per_cpu_second": samples / cpu_seconds,
        "memory": largest_resident_size() - before,
    }


def largest_resident_size() -> int:
    """The bytes of this process alone: `getrusage` would also count the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def write_log(directory: Path, samples: int) -> int:
    """Write the shards and the text file. Returns the bytes of the shards."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    from hotrows.data.synthetic import SyntheticDataSet

    dataset = SyntheticDataSet("criteo-kaggle")
    (directory / "train").mkdir()
    files = []
    per_shard = ROWS_PER_GROUP * GROUPS_PER_SHARD
    for batch in itertools.islice(dataset.loader("train", per_shard), -(-samples // per_shard)):
        dense, ids, label = batch.dense.numpy(), batch.ids.numpy(), batch.label.numpy()
        columns = {"label": label}
        columns |= {name: dense[:, j] for j, name in enumerate(DENSE)}
        columns |= {name: ids[:, j].astype("int32") for j, name in enumerate(IDS)}
        table = pa.table(columns)[: samples - len(files) * per_shard]
        files.append(f"train/part-{len(files):05}.parquet")
        pq.write_table(table, directory / files[-1], row_group_size=ROWS_PER_GROUP, compression="lz4")
        raw = table.to_pandas().iloc[::RAW_SHARE]
        raw[DENSE] = (raw[DENSE].to_numpy() * 10).astype("int32")
        raw["label"] = raw["label"].astype("int32")
        for name in IDS:
            raw[name] = [f"{value:08x}" for value in raw[name]]
        pd.DataFrame(raw).to_csv(directory / "train.txt", sep="\t", header=False, index=False, mode="a")
    categorical = [{"name": c.name, "num_ids": c.num_ids, "table": c.table, "max_length": 1}
                   for c in dataset.schema.categorical]  # fmt: skip
    empty: dict[str, Any] = {"num_samples": 0, "files": []}
    described = {
        "format": 1,
        "name": "benchmark",
        "schema": {"dense": DENSE, "categorical": categorical},
        "splits": {"train": {"num_samples": samples, "files": files}, "valid": empty, "test": empty},
        "source": {},
        "checksums": {},
    }
    (directory / "dataset.json").write_text(json_text(described))
    return sum((directory / file).stat().st_size for file in files)


if __name__ == "__main__":
    sys.exit(main())
