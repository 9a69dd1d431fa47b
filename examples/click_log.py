"""The program step by step, from a raw click log to a measured model trained with 1.5% of the rows on the device."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from hotrows.data.sample import write_criteo_log

NUM_LINES = 100_000
WORK = Path("runs/demo")


def step(title: str, *arguments: str) -> None:
    """Run the program as a user would, and stop if it fails."""
    print(f"\n\033[1m{title}\033[0m\n$ hotrows {' '.join(arguments)}", flush=True)
    finished = subprocess.run([sys.executable, "-m", "hotrows.cli.main", *arguments])
    if finished.returncode:
        sys.exit(finished.returncode)


def main() -> None:
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    start = time.perf_counter()
    log, data, run = WORK / "clicks.txt", str(WORK / "data"), str(WORK / "run")
    print(f"A click log in Criteo's format, {NUM_LINES:,} lines, made up here: {log}")
    write_criteo_log(log, NUM_LINES, seed=0)
    step("1. Prepare: number the ids by frequency, split by time, write Parquet", "prepare", "criteo", str(log),
         "--out", data, "--min-count", "1")  # fmt: skip
    step("2. Profile: which rows are hot, and how large a cache pays", "profile", data, "--batch-size", "64",
         "--hit-rate", "0.7")  # fmt: skip
    step("3. Train a DLRM with 1.5% of the rows on the device", "train", "examples/demo.toml", "--data", data,
         "--out", run)  # fmt: skip
    step("4. Evaluate the saved model again", "evaluate", run)
    print(
        f"\nDone in {time.perf_counter() - start:.0f} s. Open {run}/report.html in a browser: loss and AUC, hit rate, "
        f"stage times,\nmemory, and which table's rows the cache holds. The same model comes out with --cache 100%, "
        f"digit for digit."
    )


if __name__ == "__main__":
    main()
