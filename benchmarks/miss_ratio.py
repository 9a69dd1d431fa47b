"""Does the miss-ratio curve of `hotrows profile`, from a sample of the rows, agree with the simulator over all rows?

Profiles the synthetic data set of Kaggle's shape, then simulates an LRU cache of eight of the profile's sizes over the
same batches. The exit code is 1 if the curve is off by two points or more, or if deduplication is not within a point of
26, 21, 17 and 13%.
"""

import argparse
import sys
from pathlib import Path

import torch
from environment import describe, print_heading, write_json

import hotrows
from hotrows.data.dataset import open_dataset
from hotrows.profile import profile

WANTED = {1024: 0.26, 2048: 0.21, 4096: 0.17, 8192: 0.13}
NUM_SIZES = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="synthetic:criteo-kaggle")
    parser.add_argument("--samples", type=int, default=1 << 18)
    parser.add_argument("--batch-size", type=int, default=8192)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    given = parser.parse_args()
    environment = describe()
    print_heading(__doc__.splitlines()[0], environment)
    data = open_dataset(given.data)
    found = profile(data, batch_size=given.batch_size, num_samples=given.samples)
    print("deduplication keeps " + ", ".join(f"{share:.1%} at {size}" for size, share in found.deduplication.items()))
    print(f"one row in {1 / found.sample_rate:,.0f} followed for the curve\n")
    sizes = torch.tensor([data.schema.tables[column.table] for column in data.schema.categorical])
    first_row = sizes.cumsum(0) - sizes
    trace = []
    for batch in data.loader("train", given.batch_size):
        trace.append((batch.ids + first_row).flatten())
        if len(trace) * given.batch_size >= given.samples:
            break
    shown = found.cache_sizes[:: max(1, len(found.cache_sizes) // NUM_SIZES)][:NUM_SIZES]
    print(f"{'cache rows':>12}{'sampled':>10}{'simulated':>11}{'points off':>12}")
    results = []
    for capacity in shown:
        simulated = 1 - hotrows.simulate(trace, policy="lru", capacity=capacity).hit_rate
        sampled = found.miss_ratio[capacity]
        results.append({"cache_rows": capacity, "sampled": sampled, "simulated": simulated})
        print(f"{capacity:12,}{sampled:10.2%}{simulated:11.2%}{100 * abs(sampled - simulated):12.2f}", flush=True)
    worst = max(abs(each["sampled"] - each["simulated"]) for each in results)
    print(f"\nat most {100 * worst:.2f} points off at {len(results)} sizes (less than 2 wanted)")
    if given.json:
        kept = {str(size): share for size, share in found.deduplication.items()}
        write_json(given.json, environment, {"deduplication": kept, "miss_ratio": results, "worst": worst})
    close = all(abs(found.deduplication[size] - share) <= 0.01 for size, share in WANTED.items())
    return 0 if worst < 0.02 and close else 1


if __name__ == "__main__":
    sys.exit(main())
