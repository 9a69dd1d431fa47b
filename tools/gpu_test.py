"""Run the GPU tests in several processes on one GPU, and write what was found to benchmarks/results/gpu-tests.json.

    make gpu-test
    PYTHONPATH=src python tools/gpu_test.py --workers 8 --out PATH
    PYTHONPATH=src python tools/gpu_test.py --again

It needs pytest, hypothesis, torch and triton, and nothing else: no virtual environment and no pytest plugin. The exit
code is 1 if a test failed or was not run. A copy of the tree without `.git` says in HOTROWS_COMMIT which commit it is.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import gpu_record
from report_lines import VARIABLE
from shards import Durations, Shard, file_of, make_shards

SLOW_TEST_SECONDS = 1.0
PYTEST = (
    "-m", "pytest", "-q", "--tb=short", "-p", "report_lines", "-p", "no:cacheprovider", "--color=no",
    # The project's own options ask for a timeout plugin, and for an error where it is missing. Shards have a limit.
    "-o", "addopts=--strict-markers", "-W", "ignore::pytest.PytestConfigWarning",
)  # fmt: skip
# A test that needs one of these is counted as skipped where it is not installed, with the reason in the record.
OPTIONAL_MODULES = (
    "duckdb", "ibis", "matplotlib", "pandas", "pyarrow", "pyspark", "rich", "tensorboard", "torchmetrics", "typer",
)  # fmt: skip
MISSING_MODULE = re.compile(rf"No module named '({'|'.join(OPTIONAL_MODULES)})\b")


@dataclass
class Result:
    """What happened to one test, over all its phases and all processes that ran a part of it."""

    outcome: str = "passed"  # or "failed", "skipped"
    seconds: float = 0.0
    text: str = ""
    reason: str = ""  # why a test was skipped that would have run with more modules installed

    def add(self, outcome: str, seconds: float, text: str) -> None:
        """Take the worse of the two outcomes, and the first text of a failure."""
        missing = MISSING_MODULE.search(text) if outcome == "failed" else None
        if missing:
            outcome, text, self.reason = "skipped", "", f"needs {missing[1]}"
        ranks = ["passed", "skipped", "failed"]
        self.outcome = max(self.outcome, outcome, key=ranks.index)
        self.seconds += seconds
        self.text = self.text or text


@dataclass
class Report:
    """What the report lines of one process say."""

    nodes: list[str] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    running: str | None = None  # the test that had started and not finished
    collect_errors: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> "Report":
        report = Report()
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                event = json.loads(line)
            except ValueError:  # the process was killed while it wrote this line
                continue
            match event["event"]:
                case "collected":
                    report.nodes = event["nodes"]
                case "collect_error":
                    report.collect_errors[event["path"]] = event["text"]
                case "started":
                    report.running = event["node"]
                case "finished":
                    report.running = None
                case "phase":
                    result = report.results.setdefault(event["node"], Result())
                    result.add(event["outcome"], event["seconds"], event["text"])
        if report.running is not None:
            report.results.pop(report.running, None)
        return report


class Process:
    """One pytest process: its shard, the files it writes, and its time limit."""

    def __init__(
        self, shard: Shard, number: int, folder: Path, root: Path, limit: float, seed: int, cores: int
    ) -> None:
        self.shard, self.limit = shard, limit
        self.lines, self.log = folder / f"{number}.lines", folder / f"{number}.log"
        environment = environment_of(root, self.lines)
        environment["HOTROWS_EXAMPLES"] = str(shard.examples)
        environment["OMP_NUM_THREADS"] = str(cores)
        self._output: TextIO = self.log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, *PYTEST, f"--hypothesis-seed={seed}", *shard.nodes],
            cwd=root, env=environment, stdout=self._output, stderr=subprocess.STDOUT, process_group=0,
        )  # fmt: skip
        self._started = time.monotonic()
        self.is_over_time = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def has_ended(self) -> bool:
        """True once the process is gone. A process over its limit is killed, with all that it started."""
        if self._process.poll() is None and self.seconds > self.limit:
            self.is_over_time = True
            self.kill()
        if self._process.poll() is None:
            return False
        self._output.close()
        return True

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @property
    def was_killed(self) -> bool:
        return (self._process.returncode or 0) < 0

    def why_incomplete(self) -> str:
        """Why tests of this shard have no result, with the end of what the process printed."""
        code = self._process.returncode
        why = f"killed after {self.limit:.0f} s" if self.is_over_time else f"the process ended with code {code}"
        return f"{why}\n{last_lines(self.log.read_text(errors='replace'), 20)}"


class Run:
    """All shards of one run: starts processes, takes their results, and gives the tests of a killed process another."""

    def __init__(self, shards: Sequence[Shard], folder: Path, given: argparse.Namespace) -> None:
        self._waiting = list(shards)
        self._folder, self._given = folder, given
        self._deadline = time.monotonic() + given.limit
        self._num_started = self._num_done = 0
        self.results: dict[str, Result] = {}

    def carry_out(self) -> dict[str, Result]:
        running: list[Process] = []
        try:
            while self._waiting or running:
                while self._waiting and len(running) < self._given.workers and time.monotonic() < self._deadline:
                    running.append(self._start(self._waiting.pop(0)))
                if time.monotonic() >= self._deadline and self._waiting:
                    self._give_up()
                for process in [process for process in running if process.has_ended()]:
                    running.remove(process)
                    self._take(process)
                time.sleep(0.1)
        finally:
            for process in running:
                process.kill()
        return self.results

    def _start(self, shard: Shard) -> Process:
        left = max(1.0, self._deadline - time.monotonic())
        limit = min(self._given.shard_limit, left)
        cores = max(1, (os.cpu_count() or 1) // self._given.workers)
        self._num_started += 1
        seed = self._given.seed + self._num_started
        return Process(shard, self._num_started, self._folder, self._given.root, limit, seed, cores)

    def _give_up(self) -> None:
        for shard in self._waiting:
            self._fail(shard.nodes, f"not started within {self._given.limit:.0f} s")
        self._waiting.clear()

    def _take(self, process: Process) -> None:
        """Add a process's results to those of the run, and say so in one line."""
        report = Report.read(process.lines)
        for node, result in report.results.items():
            self._merge(node, result)
        left = [node for node in process.shard.nodes if node not in report.results]
        retried = 0
        if left:
            if process.was_killed and report.running is not None:
                self._fail([report.running], process.why_incomplete())
                left.remove(report.running)
                retried = self._retry(process.shard, left)
            else:
                errors = "\n".join(report.collect_errors.values())
                self._fail(left, errors or process.why_incomplete())
        self._num_done += 1
        found = Counter(result.outcome for result in report.results.values())
        parts = [f"{number} {outcome}" for outcome, number in sorted(found.items())]
        parts += [f"{retried} to run again"] if retried else []
        parts += [f"{len(left) - retried} without a result"] if len(left) > retried else []
        total = self._num_done + len(self._waiting) + (self._num_started - self._num_done)
        say(f"[{self._num_done}/{total}] {process.seconds:4.0f} s  {process.shard.label}: {', '.join(parts)}")

    def _retry(self, shard: Shard, nodes: Sequence[str]) -> int:
        """Give the tests that a killed process did not come to a process of their own."""
        if not nodes:
            return 0
        seconds = shard.seconds * len(nodes) / len(shard.nodes)
        self._waiting.append(replace(shard, nodes=tuple(nodes), seconds=seconds, is_retry=True))
        return len(nodes)

    def _fail(self, nodes: Sequence[str], text: str) -> None:
        for node in nodes:
            failed = Result()
            failed.add("failed", 0.0, text)
            self._merge(node, failed)

    def _merge(self, node: str, result: Result) -> None:
        merged = self.results.setdefault(node, Result())
        merged.add(result.outcome, result.seconds, result.text)
        merged.reason = merged.reason or result.reason


def environment_of(root: Path, lines: Path) -> dict[str, str]:
    """The environment of a pytest process: the package from src, the plugin from here, the file it reports to."""
    paths = [str(root / "src"), str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
    # With CI in the environment, Hypothesis draws the same cases in every process, whatever its seed.
    own = {name: value for name, value in os.environ.items() if name != "CI"}
    return {**own, "PYTHONPATH": os.pathsep.join(filter(None, paths)), VARIABLE: str(lines)}


def collect(root: Path, marker: str, paths: Sequence[str], folder: Path) -> Report:
    """The tests that the marker expression selects, and the files that could not be imported."""
    lines = folder / "collect.lines"
    found = subprocess.run(
        [sys.executable, *PYTEST, "--collect-only", "--continue-on-collection-errors", "-m", marker, *paths],
        cwd=root, env=environment_of(root, lines), capture_output=True, text=True,
    )  # fmt: skip
    report = Report.read(lines)
    if not report.nodes and not report.collect_errors:
        raise SystemExit(f"no test was collected:\n{last_lines(found.stdout + found.stderr, 30)}")
    return report


def summarize(results: Mapping[str, Result]) -> dict[str, Any]:
    """Counts and seconds of the whole run and of every file, and the seconds of every slow test."""
    files: dict[str, dict[str, Any]] = {}
    for node, result in sorted(results.items()):
        counts = files.setdefault(file_of(node), {"passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0})
        counts[result.outcome] += 1
        counts["seconds"] = round(counts["seconds"] + result.seconds, 2)
    slow = {node: round(result.seconds, 1) for node, result in results.items() if result.seconds >= SLOW_TEST_SECONDS}
    return {
        "counts": {name: sum(counts[name] for counts in files.values()) for name in ("passed", "failed", "skipped")},
        "failures": sorted(node for node, result in results.items() if result.outcome == "failed"),
        "not_installed": dict(Counter(result.reason for result in results.values() if result.reason)),
        "files": files,
        "slow_tests": dict(sorted(slow.items(), key=lambda item: -item[1])),
    }  # fmt: skip


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("torch", "triton", "numpy", "pytest", "hypothesis"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def device_name() -> str:
    import torch

    cores = f"{os.cpu_count()} cores"
    return f"{torch.cuda.get_device_name()} ({cores})" if torch.cuda.is_available() else f"CPU ({cores})"


def last_lines(text: str, number: int) -> str:
    return "\n".join(text.rstrip().splitlines()[-number:])


def say(line: str) -> None:
    print(line, flush=True)


def print_failures(results: Mapping[str, Result]) -> None:
    """One traceback per failure: tests that failed with the same text share it."""
    by_text: dict[str, list[str]] = {}
    for node, result in sorted(results.items()):
        if result.outcome == "failed":
            by_text.setdefault(result.text, []).append(node)
    for text, nodes in by_text.items():
        more = f" (and {len(nodes) - 1} more tests)" if len(nodes) > 1 else ""
        say(f"\nFAILED {nodes[0]}{more}\n{last_lines(text, 25)}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", help="files or folders of tests (default: all)")
    default = max(1, min(10, (os.cpu_count() or 1) - 2))
    parser.add_argument("--workers", type=int, default=default, help="processes at a time (default: %(default)s)")
    parser.add_argument("--marker", default="gpu", help="pytest's marker expression (default: %(default)s)")
    parser.add_argument("--examples", type=float, default=float(os.environ.get("HOTROWS_EXAMPLES", "1")),
                        help="share of the random cases to draw (default: HOTROWS_EXAMPLES, or 1)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the random cases")
    parser.add_argument("--limit", type=float, default=570, help="seconds for the whole run (default: %(default)s)")
    parser.add_argument("--shard-limit", type=float, default=300, help="seconds for one process (default: %(default)s)")
    parser.add_argument("--out", type=Path, help=f"file of the record (default: {gpu_record.RECORD} for a full run)")
    parser.add_argument("--again", action="store_true", help="run only what failed in the record, and add it there")
    parser.add_argument("--root", type=Path, default=gpu_record.ROOT, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    device = device_name()
    if given.marker == "gpu" and device.startswith("CPU"):
        print("PyTorch sees no CUDA device here, so there is no GPU test to run.", file=sys.stderr)
        return 2
    started = time.monotonic()
    is_full = given.marker == "gpu" and not given.paths
    out = given.out or (given.root / gpu_record.RECORD if is_full else None)
    earlier = gpu_record.load(given.root / gpu_record.RECORD)
    if given.again:
        if not is_full or not earlier or not earlier["failures"]:
            print(f"nothing to run again: {gpu_record.RECORD} has no failures, or tests are named", file=sys.stderr)
            return 2
        given.paths = earlier["failures"]
    with tempfile.TemporaryDirectory(prefix="gpu-test-") as folder:
        collected = collect(given.root, given.marker, given.paths, Path(folder))
        shards = make_shards(collected.nodes, given.root, Durations.of(earlier), given.workers, given.examples)
        say(
            f"{len(collected.nodes)} tests in {len(shards)} shards on {device}, "
            f"{given.workers} at a time, seed {given.seed}"
        )
        given.limit -= time.monotonic() - started
        results = Run(shards, Path(folder), given).carry_out()
    for path, text in collected.collect_errors.items():
        results[path] = Result()
        results[path].add("failed", 0.0, text)
    seconds = time.monotonic() - started
    summary = summarize(results)
    if out is not None and given.again:
        write(out, with_second_run(earlier, given, device, summary))
    elif out is not None:
        write(out, make_record(given, device, seconds, summary))
    print_failures(results)
    for reason, number in summary["not_installed"].items():
        say(f"skipped {number} tests or files: {reason}")
    say("\n" + ", ".join(f"{number} {name}" for name, number in summary["counts"].items()) + f" in {seconds:.0f} s")
    return 1 if summary["counts"]["failed"] else 0


def make_record(given: argparse.Namespace, device: str, seconds: float, summary: dict[str, Any]) -> dict[str, Any]:
    """The record: where and with what the tests ran, what was found, and which GPU code was tested."""
    return {
        "commit": gpu_record.commit(given.root),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "device": device,
        "versions": versions(),
        "safe_mode": os.environ.get("HOTROWS_SAFE", "0") == "1",
        "marker": given.marker,
        "workers": given.workers,
        "examples": given.examples,
        "seed": given.seed,
        "seconds": round(seconds, 1),
        **summary,
        "gpu_only_files": gpu_record.digests(given.root),
    }


def with_second_run(
    record: Mapping[str, Any], given: argparse.Namespace, device: str, summary: dict[str, Any]
) -> dict[str, Any]:
    """The record of a full run in which failed tests have the results of another run.

    Which GPU code was tested stays as it was: the other tests have not run on what has changed since.
    """
    counts = {name: record["counts"][name] + summary["counts"][name] for name in record["counts"]}
    counts["failed"] -= len(record["failures"])
    files = {path: dict(found) for path, found in record["files"].items()}
    for node in record["failures"]:
        files[file_of(node)]["failed"] -= 1
    for path, found in summary["files"].items():
        files[path] = {name: round(files[path][name] + number, 2) for name, number in found.items()}
    second = {
        "commit": gpu_record.commit(given.root),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "device": device,
        "tests": record["failures"],
        "counts": summary["counts"],
    }
    return {
        **record, "counts": counts, "failures": summary["failures"], "files": files,
        "again": [*record.get("again", []), second],
    }  # fmt: skip


def write(out: Path, record: Mapping[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=2) + "\n")
    say(f"written: {out}")


if __name__ == "__main__":
    # SIGTERM ends the run as Ctrl-C does, so that no process of pytest is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
