"""What does planning a batch cost, and what does that depend on?

Times the planner with the hash index for several sizes of the batch, of the cache and of the table. One size varies
while the others are fixed. The cache is full, so every miss evicts a row. No memory in proportion to the table is used.
"""

import argparse
import statistics
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from environment import describe, print_heading, write_json
from torch import Tensor
from zipf import Zipf

from hotrows.cache.indexes import make_index
from hotrows.cache.planning.planner import EagerPlanner
from hotrows.cache.planning.protocol import Counts, Placement
from hotrows.cache.policies import make_policy
from hotrows.cache.slots import Slots
from hotrows.ops.unique import UniqueRows, unique_rows

DEPTH = 4
WINDOW = 8
WARM_UP = 2 * WINDOW
EXPONENT = 1.18
MULTIPLIER = 2_654_435_761  # has no common factor with 10^k, so it permutes the rows of a table of that size


@dataclass(frozen=True)
class Case:
    """Sizes to plan with."""

    lookups: int = 4096
    slots: int = 20_000
    rows: int = 10_000_000


# Each sweep contains the default case.
SWEEPS = {
    "lookups": [Case(lookups=n) for n in (1024, 2048, 4096, 8192, 16_384)],
    "slots": [Case(slots=n) for n in (10_000, 20_000, 100_000, 1_000_000)],
    "rows": [Case(rows=10**k) for k in (5, 6, 7, 8)],
}


class Traffic:
    """Batches with a known number of misses.

    One lookup in eight is a row that was not looked up for a long time. The others are Zipf-distributed over as many
    hot rows as the batch has lookups. The sequence of rows does not depend on the size of the table: it is over a fixed
    number of rows, which are spread over the table.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._hot = Zipf(case.lookups, EXPONENT)
        self._num_cold = max(10**5, 4 * case.slots) - case.lookups
        self._next_cold = 0
        if self._num_cold + case.lookups > case.rows:
            raise ValueError(f"{case}: give a table of at least {self._num_cold + case.lookups} rows")

    def batch(self) -> Tensor:
        num_cold = self._case.lookups // 8
        return self._spread(torch.cat([self._hot.draw([self._case.lookups - num_cold]), self._cold(num_cold)]))

    def cold(self, num: int) -> Tensor:
        """The rows that were not looked up for the longest time."""
        return self._spread(self._cold(num))

    def _cold(self, num: int) -> Tensor:
        rows = self._case.lookups + (self._next_cold + torch.arange(num)) % self._num_cold
        self._next_cold += num
        return rows

    def _spread(self, rows: Tensor) -> Tensor:
        return rows * MULTIPLIER % self._case.rows


class Stopwatch:
    """Measures the milliseconds of work on a device."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def start(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        torch.cuda.synchronize()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def stop(self, started: Any) -> float:
        if not self._on_gpu:
            return 1000 * (time.perf_counter() - started)
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        event.synchronize()
        return float(started.elapsed_time(event))


class Subject:
    """One case with a full cache, which plans one batch after the other."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self._device = device
        self._stopwatch = Stopwatch(device)
        self._traffic = Traffic(case)
        slots = Slots(case.slots, device)
        self._planner = EagerPlanner(slots, make_index("hash", case.rows, slots), make_policy("lookahead"))
        self._announced: deque[tuple[int, UniqueRows]] = deque()
        self._number = 0
        self._fill()
        self._first = self._planner.plan_number + 1  # the plans that filled the cache are no longer in flight
        for _ in range(WINDOW + WARM_UP):
            self.step()
        self.plan_ms: list[float] = []
        self.announce_ms: list[float] = []
        self.misses: list[int] = []

    def step(self) -> tuple[float, float, int]:
        """Announce one batch, plan the oldest announced one, and return the milliseconds of both and the misses."""
        rows = self._traffic.batch().to(self._device)
        started = self._stopwatch.start()
        unique = unique_rows(rows)
        self._planner.announce(unique, self._number)
        announce_ms = self._stopwatch.stop(started)
        self._announced.append((self._number, unique))
        self._number += 1
        if len(self._announced) < WINDOW:
            return announce_ms, 0.0, 0

        number, unique = self._announced.popleft()
        oldest = max(self._first, self._planner.plan_number + 1 - DEPTH)
        started = self._stopwatch.start()
        (plan,) = self._planner.plan(unique, Placement.ATOMIC, oldest, number)
        plan_ms = self._stopwatch.stop(started)
        counts = Counts(*plan.counts.tolist())
        assert counts.fits, self.case
        self._planner.resolve(plan, counts, Placement.ATOMIC)
        return announce_ms, plan_ms, counts.misses

    def measure(self) -> None:
        announce_ms, plan_ms, misses = self.step()
        self.announce_ms.append(announce_ms)
        self.plan_ms.append(plan_ms)
        self.misses.append(misses)

    def result(self) -> dict[str, Any]:
        return {
            "lookups": self.case.lookups,
            "slots": self.case.slots,
            "rows": self.case.rows,
            "misses": statistics.mean(self.misses),
            "announce_ms": statistics.median(self.announce_ms),
            "plan_ms": statistics.median(self.plan_ms),
            "plan_mean_ms": statistics.mean(self.plan_ms),
        }

    def _fill(self) -> None:
        for part in self._traffic.cold(self.case.slots).to(self._device).split(50_000):
            (plan,) = self._planner.plan(unique_rows(part), Placement.SPILL)
            self._planner.resolve(plan, Counts(*plan.counts.tolist()), Placement.SPILL)


def measure(name: str, cases: list[Case], rounds: int, device: torch.device) -> list[dict[str, Any]]:
    """Time the cases alternately, so that other work on the machine affects all of them."""
    subjects = [Subject(case, device) for case in cases]
    for _ in range(rounds):
        for subject in subjects:
            subject.measure()
    results = [subject.result() for subject in subjects]
    print(f"by {name}:")
    titles = ("lookups", "slots", "table rows", "misses", "plan ms", "(mean)", "announce ms")
    print("".join(f"{title:>13}" for title in titles))
    for r in results:
        print(
            f"{r['lookups']:>13,}{r['slots']:>13,}{r['rows']:>13,}{r['misses']:>13,.1f}{r['plan_ms']:>13.2f}"
            f"{r['plan_mean_ms']:>13.2f}{r['announce_ms']:>13.2f}"
        )
    print(flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="plans timed for each case (default 100)")
    parser.add_argument("--device", default="cpu", help="where the planner runs: cpu (default) or cuda")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results to this file")
    arguments = parser.parse_args()
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no CUDA device here, use --device cpu")

    torch.set_num_threads(1)
    environment = describe(arguments.device)
    print_heading(__doc__.splitlines()[0], environment)
    print(
        f"Hash index, policy lookahead with a window of {WINDOW}, {arguments.rounds} plans for each case, alternating "
        f"between the cases; medians.\nAnnouncing sorts a batch and shows it to the policy; planning gives it slots.\n"
    )
    device = torch.device(arguments.device)
    results = {name: measure(name, cases, arguments.rounds, device) for name, cases in SWEEPS.items()}
    small, large = results["rows"][0], results["rows"][-1]
    ratio = large["plan_ms"] / small["plan_ms"]
    print(
        f"A table of {large['rows']:,} rows takes {ratio:.2f} times as long to plan as one of {small['rows']:,}, with "
        f"{large['misses']:.1f} and {small['misses']:.1f} misses a batch."
    )
    if arguments.json:
        write_json(
            arguments.json,
            environment,
            {"rounds": arguments.rounds, "window": WINDOW, "results": results, "ratio_by_table_size": ratio},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
