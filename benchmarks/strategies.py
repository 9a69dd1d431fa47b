"""How fast is the same training with every strategy, and is the result the same?

    python benchmarks/strategies.py --rows 0.01 --dim 32 --batch-size 2048 --steps 60

Each strategy trains the same model from the same first values on the same synthetic Criteo batches, which are in memory
before, and is evaluated on the same test split. `host` updates its rows with the operations of the CPU, so on a GPU its
result differs by rounding.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from environment import describe, print_heading, write_json

from hotrows.reproduce.bench import Bench
from hotrows.reproduce.scale import Scale
from hotrows.strategies import STRATEGIES
from hotrows.train.config import RunConfig
from hotrows.train.run import choose_device

SHAPE = "criteo-kaggle"
SETTINGS = {"optimizer": {"name": "adagrad", "lr": 0.05}, "dense_optimizer": {"name": "adam", "lr": 0.001}}
COLUMNS = ("strategy", "samples/s", "hit rate", "MB/step in", "MB/step out", "device GB", "loss", "test AUC", "equal")


def train(strategy: str, given: argparse.Namespace, bench: Bench) -> dict[str, Any]:
    """The summary of one run, with the speed after the warm-up."""
    content = {
        **SETTINGS,
        "strategy": strategy,
        "model": {"name": given.model, "dim": given.dim},
        "cache": {"size": given.cache},
        "train": {"batch_size": given.batch_size, "precision": given.precision},
    }
    data = bench.training_data(SHAPE, given.batch_size)
    trained = bench.train(strategy, RunConfig.from_dict(content, "benchmark"), data)
    return {**trained.summary, "samples_per_second": trained.samples_per_second}


def line(found: dict[str, Any]) -> str:
    cache, steps = found["cache"], found["steps"]
    cells = (
        f"{found['samples_per_second']:,.0f}", f"{cache['hit_rate']:.1%}", f"{cache['bytes_in'] / steps / 1e6:.2f}",
        f"{cache['bytes_out'] / steps / 1e6:.2f}", f"{found['device_memory'] / 1e9:.3f}",
        f"{found['train']['loss']:.6f}", f"{found['test']['auc']:.6f}", "yes" if found["equal_to_first"] else "NO",
    )  # fmt: skip
    return f"{found['strategy']:<12}" + "".join(f"{cell:>13}" for cell in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=["device", "lookahead", "heca", "freqcache", "host"])
    parser.add_argument("--rows", type=float, default=0.01, help="share of the rows of Criteo Kaggle")
    parser.add_argument("--model", default="dlrm:freqcache")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--cache", default="1.5%")
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    given = parser.parse_args()
    unknown = sorted(set(given.strategies) - set(STRATEGIES))
    if unknown:
        parser.error(f"unknown strategies {', '.join(unknown)}; known are {', '.join(STRATEGIES)}")
    environment = describe(str(choose_device(given.device)))
    print_heading(__doc__.splitlines()[0], environment)
    print(
        f"{given.rows:g} of Criteo Kaggle's rows, {given.model} of dim {given.dim}, cache {given.cache}, "
        f"{given.steps} steps of {given.batch_size:,} samples\n"
    )
    print(f"{COLUMNS[0]:<12}" + "".join(f"{word:>13}" for word in COLUMNS[1:]), flush=True)
    scale = Scale("benchmark", given.steps, 0, 4 * given.batch_size, rows=given.rows)
    bench = Bench(scale, given.device, precision=given.precision)
    results: list[dict[str, Any]] = []
    for strategy in given.strategies:
        found = train(strategy, given, bench)
        first = results[0] if results else found
        found["equal_to_first"] = (found["train"], found["test"]) == (first["train"], first["test"])
        results.append(found)
        print(line(found), flush=True)
        if given.json:
            settings = {key: str(value) for key, value in vars(given).items() if key != "json"}
            write_json(given.json, environment, {"settings": settings, "results": results})
    wrong = [found["strategy"] for found in results if not found["equal_to_first"] and found["strategy"] != "host"]
    if wrong:
        print(f"\nNOT equal to {results[0]['strategy']} in every digit: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
