"""How long does one iteration of the planning graph take on a GPU: one batch announced and another planned?

Criteo Kaggle's tables (26 features, 33.8 M rows), a full cache of 1.5% with the hash index, and new Zipf-distributed
ids in every iteration. No rows are moved and nothing trains, so this is planning alone. The time is the GPU's, from an
event before the iteration to one after it; the median of many iterations counts. The exit code is 1 if a target is
missed.

On a machine without a GPU, Triton's interpreter shows that it runs: `TRITON_INTERPRET=1 python benchmarks/iteration.py
--device cpu --scale 0.0003 --batch-sizes 2 --depth 1 --window 4 --iterations 1`.
"""

import argparse
import itertools
import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from environment import checked_device, describe, print_heading, write_json
from zipf import draw_ranks

from hotrows.cache.indexes import make_index
from hotrows.cache.planning.id_columns import IdColumns
from hotrows.cache.planning.planner import EagerPlanner
from hotrows.cache.planning.planning_graph import PlanningGraph
from hotrows.cache.planning.protocol import Counts, Placement, Plan
from hotrows.cache.policies import make_policy
from hotrows.cache.slots import Slots
from hotrows.data.shapes import CRITEO_KAGGLE
from hotrows.runtime.streams import record_event

EXPONENT = 1.18
SHARE = 0.015
TARGET_MS = {1024: 0.15, 16384: 0.25}


def measure(
    batch_size: int, sizes: Sequence[int], device: torch.device, depth: int, window: int, num_iterations: int
) -> dict[str, Any]:
    """Announce and plan batches until this many iterations with a full cache are timed."""
    num_rows = sum(sizes)
    slots = Slots(math.ceil(SHARE * num_rows), device)
    planner = EagerPlanner(slots, make_index("hash", num_rows, slots), make_policy("lookahead"))
    lengths = torch.tensor(sizes, device=device)
    columns = IdColumns(None, lengths.cumsum(0) - lengths, lengths)
    graph = PlanningGraph(
        planner, columns, torch.Size([batch_size, len(sizes)]), torch.int64, depth, window, num_rows, device,
        move=lambda moves: None,
    )  # fmt: skip
    generator = torch.Generator(device).manual_seed(0)
    announced: deque[tuple[int, int]] = deque()  # (request buffer, batch number)
    plan_numbers: deque[int] = deque(maxlen=depth + 1)  # of the plans in flight
    num_unique: dict[int, int] = {}  # the number of unique rows by request buffer
    times, misses, unique = [], [], []
    for number in itertools.count():
        ids = draw_ranks(sizes, (batch_size,), EXPONENT, generator)
        announced_buffer = graph.next_request_buffer()
        graph.prepare_announcement([ids], announced_buffer, number)
        announced.append((announced_buffer, number))
        plan: Plan | None = None
        if len(announced) == window:
            buffer, planned_number = announced.popleft()
            (plan_buffer,) = graph.plan_buffers_of(buffer)
            num, oldest = num_unique[buffer], plan_numbers[0] if plan_numbers else None
            plan_number, scanned_all = graph.prepare_plan(buffer, oldest, planned_number, num, scan_all=False)
            plan = graph.plan_in(plan_buffer, plan_number, planned_number, num, scanned_all)
            plan_numbers.append(plan_number)
        ms = _time(lambda plans=plan is not None: graph.run(True, plans, 0), device)
        graph.submitted(record_event(device))
        num_unique[announced_buffer] = int(graph.unique_count(announced_buffer, 0)[0])
        planner.note_unique_count(number, num_unique[announced_buffer])
        if plan is None:
            continue
        counts = Counts(*graph.counts(plan_buffer).tolist())
        assert counts.fits, "the cache is too small for the batches in flight"
        planner.resolve(plan, counts, Placement.ATOMIC)
        if counts.evictions == counts.misses > 0:  # the cache is full
            times.append(ms)
            misses.append(counts.misses)
            unique.append(counts.unique)
        if len(times) == num_iterations:
            break
    return {
        "batch_size": batch_size, "ms": statistics.median(times),
        "unique": statistics.mean(unique), "misses": statistics.mean(misses), "slots": slots.num,
    }  # fmt: skip


def _time(work: Callable[[], None], device: torch.device) -> float:
    """Do the work and wait for it. Returns the milliseconds that it took, measured by the GPU if there is one."""
    if device.type != "cuda":
        began = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - began)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start.record()
    work()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--scale", type=float, default=1.0, help="the share of the tables' rows; targets are for 1")
    parser.add_argument("--device", default="cuda", help="cuda (default) or cpu")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results to this file")
    given = parser.parse_args(arguments)
    device = checked_device(parser, given.device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    sizes = [max(1, round(column.num_ids * given.scale)) for column in CRITEO_KAGGLE.columns]
    environment = describe(given.device)
    print_heading(__doc__.splitlines()[0], environment)
    print(f"{'batch':>7}{'ms':>10}{'at most':>9}{'unique rows':>15}{'misses':>9}")
    results = []
    for batch_size in given.batch_sizes:
        found = measure(batch_size, sizes, device, given.depth, given.window, given.iterations)
        target = TARGET_MS.get(batch_size) if device.type == "cuda" and given.scale == 1 else None
        results.append({**found, "target_ms": target, "enough": target is None or found["ms"] <= target})
        wanted = "" if target is None else f"{target:.2f}"
        print(
            f"{batch_size:7}{found['ms']:10.3f}{wanted:>9}{found['unique']:15,.0f}{found['misses']:9,.0f}", flush=True
        )
    if given.json:
        write_json(given.json, environment, {"scale": given.scale, "results": results})
    return 0 if all(result["enough"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
