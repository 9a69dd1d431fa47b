"""Does hotrows stay exact and take no more memory, however long it runs and whatever happens?

Trains, reads, saves, interrupts and deletes modules at random, for as many hours as are given: loops that look ahead,
plain loops and graphed steps, with all policies and indexes, in caches that evict and overflow. Beside each module runs
one with all rows in the cache, and their pooled rows, weights and optimizer state are compared bit for bit, after every
operation. Every few seconds memory, threads and descriptors are measured; now and then all modules are deleted, so that
idle moments can be compared exactly. The first tenth of the time is the warm-up, which is not judged.

Ctrl-C ends it early with the verdict for the time so far. The exit code is 1 if a row was wrong or a bound was passed.
"""

import argparse
import faulthandler
import gc
import json
import logging
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow
import torch
from environment import checked_device, describe, print_heading, write_json
from soak_measure import (
    CPU_BOUNDS,
    CUDA_BOUNDS,
    MB,
    Judged,
    Record,
    fix_malloc_thresholds,
    judge,
    name_threads,
    peak_rss,
    take_idle_sample,
    take_sample,
)
from soak_operations import ONLY_FOR, OPERATIONS, is_sent_by_script
from soak_pairs import Pair

from hotrows.data.dataset import open_dataset
from hotrows.data.schema import DataSet

WARM_UP = 0.1  # of the time
NUM_IDLE = 20  # idle moments in a run, fewer if they would take more than a tenth of it
MAX_IDLE_SHARE = 0.1
NUM_PAIRS = 3  # that are alive at the same time
SAMPLE_SECONDS = 5.0
LINE_SECONDS = 60.0  # between two lines of progress
MAX_FAILURES = 20  # after which it ends
HANG_SECONDS = 600  # an operation that takes longer ends the program, with the stacks of all threads
COMPARED = 0.5  # the share of the operations after which all rows are compared; pooled rows are compared at every step
LOG_SAMPLES = 150_000
MEMORY = {
    "rss": "RSS",
    "cuda_allocated": "device memory allocated",
    "cuda_reserved": "device memory reserved",
    "pinned": "pinned memory",
}


@dataclass
class Soak:
    """A run: the modules that are alive, what was done, and what was measured."""

    seconds: float
    seed: int
    device: str
    log: DataSet
    record: Record = field(default_factory=Record)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    was_interrupted: bool = False

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.pairs: list[Pair] = []
        self.num_pairs = 0
        self.begin = time.perf_counter()
        self._next_sample = self._next_line = 0.0
        self._next_idle = WARM_UP * self.seconds  # or later, when every operation was done once
        self._num_threads: int | None = None

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.begin

    @property
    def num_operations(self) -> int:
        return sum(self.counts[name] for name in OPERATIONS)

    def run(self) -> None:
        """Go on until the time is over, the user interrupts, or too much is wrong."""
        before = signal.signal(signal.SIGINT, self._receive_sigint)  # it may be ignored in the background
        errors = sys.__stderr__ or sys.stderr
        hook, sys.unraisablehook = sys.unraisablehook, self._count_swallowed
        try:
            while not self.was_interrupted and self.elapsed < self.seconds and len(self.failures) < MAX_FAILURES:
                faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=errors)
                try:
                    self.operate()
                    self.measure()
                except KeyboardInterrupt:
                    if not self.was_interrupted:  # by this script, but it came behind the operation that sent it
                        self.counts.update(["interrupts delivered late"])
                        self.pairs.clear()
        finally:
            faulthandler.cancel_dump_traceback_later()
            sys.unraisablehook = hook
            signal.signal(signal.SIGINT, before)
        self.measure_idle()

    def _receive_sigint(self, number: int, frame: FrameType | None) -> None:
        """Note whether the user has pressed Ctrl-C, as the KeyboardInterrupt may be lost on its way to `run`."""
        self.was_interrupted = self.was_interrupted or not is_sent_by_script(frame)
        raise KeyboardInterrupt

    def operate(self) -> None:
        """One operation on one of the pairs."""
        while len(self.pairs) < NUM_PAIRS:
            self.pairs.append(Pair(self.seed, self.num_pairs, self.device, self.log))
            self.num_pairs += 1
        pair = self.random.choice(self.pairs)
        possible = [name for name in OPERATIONS if pair.shape.kind in ONLY_FOR.get(name, (pair.shape.kind,))]
        name = pair.random.choice([name for name in possible if name not in self.counts] or possible)
        pair.history.append(name)
        try:
            OPERATIONS[name](pair)
            if name == "interrupt" or pair.random.random() < COMPARED:
                pair.compare()
        except Exception:
            if self.was_interrupted:  # such as autograd's RuntimeError after Ctrl-C
                return
            self._fail(pair, name)
            pair.num_operations = 0
        self._count(pair, name)
        pair.num_operations -= 1
        if pair.num_operations <= 0:
            self.pairs.remove(pair)
            if self.random.random() < 0.2:
                del pair
                gc.collect()

    def _count(self, pair: Pair, name: str) -> None:
        setting = pair.setting
        self.counts["steps"] += pair.num_steps
        pair.num_steps = 0
        self.counts.update([name, f"policy {setting.policy}", f"index {setting.index}", pair.shape.optimizer])

    def _fail(self, pair: Pair, name: str) -> None:
        failure = f"{name}: {traceback.format_exc()}{pair.describe()}"
        self.failures.append(failure)
        print(f"\nFAILED after {self.elapsed:,.0f} s: {failure}\n", flush=True)

    def _count_swallowed(self, unraisable: Any) -> None:
        """An interrupt may arrive in a finalizer, where Python cannot raise it. Anything else there is a failure."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            self.counts.update(["interrupts swallowed by a finalizer"])
        else:
            self.failures.append(f"{unraisable.exc_type.__name__} in a finalizer: {unraisable.exc_value}")

    def measure(self) -> None:
        """Take a sample and show the progress, if it is time to."""
        now = self.elapsed
        if now >= self._next_sample:
            self._next_sample = now + min(SAMPLE_SECONDS, self.seconds / 200)
            self.record.running.append(take_sample(now, self.device))
        if now >= self._next_line:
            self._next_line = now + min(LINE_SECONDS, self.seconds / 10)
            self._show()
        if now >= self._next_idle and set(OPERATIONS) <= set(self.counts):
            self.measure_idle()
            now, took = self.elapsed, self.elapsed - now
            self._next_idle = now + max(self.seconds * (1 - WARM_UP) / NUM_IDLE, took / MAX_IDLE_SHARE)

    def measure_idle(self) -> None:
        """Delete all modules, and measure what is left."""
        faulthandler.cancel_dump_traceback_later()  # it waits in a thread
        self.pairs.clear()
        sample = take_idle_sample(self.elapsed, self.device, self._num_threads)
        if self._num_threads is None:
            self._num_threads = sample.threads
        elif sample.threads > self._num_threads:
            print(f"more threads than after the warm-up, {self.elapsed:,.0f} s: {name_threads()}", flush=True)
        self.record.idle.append(sample)
        self.record.peak_rss = peak_rss()

    def _show(self) -> None:
        sample = self.record.running[-1]
        print(
            f"{self.elapsed / 60:7.1f} min  {self.num_operations:8,} operations  "
            f"{self.num_pairs:6,} modules  RSS {sample.rss / MB:5,.0f} MB  {sample.threads} threads  "
            f"{sample.descriptors} descriptors  {len(self.failures)} failures",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0, help="how long, such as 0.05")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path, help="a prepared log with small tables; by default one is made")
    parser.add_argument("--json", "--out", type=Path, help="write the results to this file")
    given = parser.parse_args(arguments)
    checked_device(parser, given.device)
    if not Path("/proc/self/statm").exists():
        parser.error("memory is measured as Linux reports it, in /proc")
    torch.set_num_threads(1)
    fix_malloc_thresholds()
    pyarrow.set_io_thread_count(1)  # otherwise it starts up to 8 threads, each one when so many files are read at once
    logging.getLogger("hotrows").setLevel(logging.ERROR)  # not every step can be replayed from a graph
    environment = describe(given.device)
    print_heading(__doc__.splitlines()[0], environment)
    with tempfile.TemporaryDirectory() as made:
        data = given.data or prepare_log(Path(made))
        soak = Soak(given.hours * 3600, given.seed, given.device, open_dataset(data))
        soak.run()
    judged = judge(soak.record, CPU_BOUNDS if given.device == "cpu" else CUDA_BOUNDS)
    is_good = show_verdict(soak, judged)
    if given.json:
        results = {
            "seed": given.seed,
            "device": given.device,
            "hours": soak.elapsed / 3600,
            "good": is_good,
            "operations": soak.num_operations,
            "modules": soak.num_pairs,
            "counts": dict(sorted(soak.counts.items())),
            "failures": soak.failures,
            "judged": [{**asdict(bound), "is_met": bound.is_met} for bound in judged],
            **soak.record.to_json(),
        }
        write_json(given.json, environment, results)
    return 0 if is_good else 1


def show_verdict(soak: Soak, judged: Sequence[Judged]) -> bool:
    """Print what was done and measured, and whether it is within the bounds."""
    record = soak.record
    print("\n" + ", ".join(f"{name} {soak.counts[name]:,}" for name in sorted(soak.counts)))
    ended = ", ended early" if soak.was_interrupted else ""
    minutes = soak.elapsed / 60
    print(f"{soak.num_operations:,} operations on {soak.num_pairs:,} modules in {minutes:,.1f} min{ended}")
    for name, what in MEMORY.items():
        if name == "rss" or soak.device != "cpu":
            first, last = (getattr(sample, name) / MB for sample in (record.idle[0], record.idle[-1]))
            print(
                f"{what}: peak {record.most(name) / MB:,.1f} MB; with no module left {last:,.1f} MB at the end, "
                f"{first:,.1f} MB after the warm-up"
            )
    first, last = (sample.malloc_bytes / MB for sample in (record.idle[0], record.idle[-1]))
    print(f"of it given out by malloc: {last:,.1f} MB at the end, {first:,.1f} MB after the warm-up")
    print("\nIs it within its bound?")
    print(f"{'NO ' if soak.failures else 'yes'}  wrong rows and unexpected errors: {len(soak.failures)}, at most 0")
    for bound in judged:
        print(bound)
    if not judged:
        missing = sorted(set(OPERATIONS) - set(soak.counts))
        print(
            "NO   memory, threads and descriptors: they cannot be judged, as the warm-up has not ended"
            + (f"; not done yet: {', '.join(missing)}" if missing else "")
        )
    is_good = bool(judged) and all(bound.is_met for bound in judged) and not soak.failures
    print(f"\nverdict: {'yes' if is_good else 'NO'}")
    return is_good


def prepare_log(directory: Path) -> Path:
    """Write a small click log and prepare it, in another process, as preparing takes more memory than training here."""
    generator = torch.Generator().manual_seed(0)
    columns = {name: (torch.rand(LOG_SAMPLES, generator=generator).pow(3) * size).long().tolist()
               for name, size in (("user", 2_000), ("item", 500), ("place", 40))}  # fmt: skip
    labels = torch.randint(2, (LOG_SAMPLES,), generator=generator).tolist()
    with open(directory / "log.csv", "w") as file:
        file.write("label,user,item,place\n")
        file.writelines(",".join(map(str, row)) + "\n" for row in zip(labels, *columns.values(), strict=True))
    config = directory / "log.toml"
    config.write_text(f'label = "label"\ncategorical = {json.dumps(list(columns))}\n')
    command = [
        sys.executable, "-c", "from hotrows.cli.main import app; app()", "prepare", "table", str(directory / "log.csv"),
        "--config", str(config), "--out", str(directory / "log"), "--split", "random",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return directory / "log"


if __name__ == "__main__":
    sys.exit(main())
