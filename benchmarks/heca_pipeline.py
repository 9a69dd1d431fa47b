"""Does HECA's pipeline take as long as its longest stage, or as the sum of its stages?

Loading, collecting and training are slowed down to known times, and each of them is once the longest: the loader and
the moves of rows sleep in their threads, and training sleeps in the main one. The times of the stages are those of
`HecaStrategy.stage_times`, on CUDA as the device measures them. `wall` is the time from the end of a batch to the end
of the next one. On the CPU, planning runs in the thread that trains, so `wall` is at least the sum of both.
The exit code is 1 if `wall` exceeds the longest stage by more than a fifth; on the CPU, planning counts as training.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from environment import describe, print_heading, write_json
from zipf import draw_ranks

import hotrows
from hotrows.batch import Batch
from hotrows.ops.swap import Moves
from hotrows.stores import Store
from hotrows.strategies import KnownCounts
from hotrows.strategies.base import CacheSettings
from hotrows.strategies.heca import HecaOptions, HecaStrategy

SIZES = (100_000, 20_000, 3_000, 500)
EXPONENT = 1.18
CYCLES_PER_MS = 1_700_000  # of a GPU, approximately
SLACK = 1.2


class SlowStore:
    """A store whose moves take this many milliseconds longer."""

    def __init__(self, store: Store, ms: float) -> None:
        self._store = store
        self._ms = ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def exchange(self, records: torch.Tensor, moves: Moves) -> None:
        take_time(self._ms, records.device)
        self._store.exchange(records, moves)


def take_time(ms: float, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda._sleep(int(ms * CYCLES_PER_MS))  # type: ignore[no-untyped-call]
    else:
        time.sleep(ms / 1000)


def load(num: int, size: int, ms: float) -> Iterator[Batch]:
    random = torch.Generator().manual_seed(0)
    for _ in range(num):
        time.sleep(ms / 1000)
        ids = draw_ranks(SIZES, (size,), EXPONENT, random)
        yield Batch(torch.empty(size, 0), ids, torch.zeros(size))


def count(batches: int, size: int) -> dict[str, torch.Tensor]:
    ids = torch.cat([batch.ids for batch in load(batches, size, 0.0) if isinstance(batch.ids, torch.Tensor)])
    return {f"t{i}": torch.bincount(ids[:, i], minlength=num_rows) for i, num_rows in enumerate(SIZES)}


def measure(slow: dict[str, float], device: torch.device, batches: int, size: int) -> dict[str, Any]:
    data = KnownCounts(lambda: count(batches, size))
    strategy = HecaStrategy(CacheSettings(size="20%"), HecaOptions(), data)
    tables = [hotrows.Table(f"t{i}", num_rows) for i, num_rows in enumerate(SIZES)]
    bags = strategy.make_bags(tables, 16, hotrows.optim.SGD(lr=0.1), device, seed=0)
    for cache in bags.caches:
        cache.store = SlowStore(cache.store, slow["collector"])
    for batch in strategy.batches(load(batches, size, slow["loader"]), bags):
        loss = bags(batch.ids).square().sum()
        take_time(slow["trainer"], bags.device)
        loss.backward()
    times = strategy.stage_times
    assert times is not None
    found = times.to_json()
    planning = found["collector"] - slow["collector"] if device.type == "cpu" else 0.0
    expected = max(1000 * times.longest, found["trainer"] + planning)
    return {"slow": slow, **found, "longest": 1000 * times.longest, "sum": 1000 * times.sum, "expected": expected}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--out", type=Path, help="write the results here, as JSON")
    options = parser.parse_args()
    device = torch.device(options.device)
    environment = describe(options.device)
    print_heading("HECA's stages, ms per batch", environment)
    print(f"{'slowest':<12}{'loader':>9}{'collector':>11}{'trainer':>9}{'sum':>8}{'longest':>9}{'wall':>8}")
    measure(dict.fromkeys(("loader", "collector", "trainer"), 0.0), device, 10, options.batch_size)  # compiles kernels
    results = []
    for longest in ("loader", "collector", "trainer"):
        slow = {stage: 40.0 if stage == longest else 20.0 for stage in ("loader", "collector", "trainer")}
        found = measure(slow, device, options.batches, options.batch_size)
        results.append(found)
        print(
            f"{longest:<12}{found['loader']:>9.2f}{found['collector']:>11.2f}{found['trainer']:>9.2f}"
            f"{found['sum']:>8.2f}{found['longest']:>9.2f}{found['wall']:>8.2f}",
            flush=True,
        )
    if options.out is not None:
        write_json(options.out, environment, {"stages": results})
    return int(any(found["wall"] > SLACK * found["expected"] for found in results))


if __name__ == "__main__":
    sys.exit(main())
