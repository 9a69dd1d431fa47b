"""The same training by every strategy: samples/s, hit rate, bytes moved, device memory, and if the result is equal.

    python benchmarks/strategies.py --data "synthetic:criteo-kaggle?scale=0.01&samples=200000" --batch-size 2048

Each strategy trains one model on the same batches from the same first values, and is evaluated on the same test split.
`host` updates its rows by the CPU's operations, so on a GPU its result is equal to rounding only.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from environment import describe, print_heading, write_json

from hotrows.strategies import STRATEGIES
from hotrows.train.config import RunConfig, from_dict
from hotrows.train.run import choose_device, run

SETTINGS = {"optimizer": {"name": "adagrad", "lr": 0.05}, "dense_optimizer": {"name": "adam", "lr": 0.001}}


def train(strategy: str, given: argparse.Namespace, out: Path) -> dict[str, Any]:
    """The summary of one run."""
    content = {
        **SETTINGS,
        "data": given.data,
        "device": given.device,
        "strategy": strategy,
        "out": str(out / strategy),
        "save": False,
        "model": {"name": given.model, "dim": given.dim},
        "cache": {"size": given.cache},
        "train": {"batch_size": given.batch_size, "max_steps": given.steps, "precision": given.precision},
    }
    return run(from_dict(RunConfig, content, "benchmark"), progress=False).summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=["device", "lookahead", "heca", "freqcache", "host"])
    parser.add_argument("--data", default="synthetic:criteo-kaggle?scale=0.01&samples=200000")
    parser.add_argument("--model", default="dlrm:freqcache")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--cache", default="1.5%")
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--steps", type=int, help="at most so many steps")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    given = parser.parse_args()
    unknown = sorted(set(given.strategies) - set(STRATEGIES))
    if unknown:
        parser.error(f"unknown strategies {', '.join(unknown)}; known are {', '.join(STRATEGIES)}")
    environment = describe(str(choose_device(given.device)))
    print_heading(__doc__.splitlines()[0], environment)
    print(f"{given.data}, {given.model} of dim {given.dim}, cache {given.cache}, batches of {given.batch_size:,}\n")
    head = ("strategy", "samples/s", "hit rate", "GB in", "GB out", "device GB", "train loss", "test AUC", "equal")
    print(f"{head[0]:<12}" + "".join(f"{word:>12}" for word in head[1:]))
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for strategy in given.strategies:
            found = train(strategy, given, Path(directory))
            results.append(found)
            cache, first = found["cache"], results[0]
            equal = (found["train"], found["test"]) == (first["train"], first["test"])
            found["equal_to_first"] = equal
            print(
                f"{strategy:<12}{found['samples_per_second']:>12,.0f}{cache['hit_rate']:>12.1%}"
                f"{cache['bytes_in'] / 1e9:>12.3f}{cache['bytes_out'] / 1e9:>12.3f}"
                f"{found['device_memory'] / 1e9:>12.3f}"
                f"{found['train']['loss']:>12.6f}{found['test']['auc']:>12.6f}{'yes' if equal else 'NO':>12}",
                flush=True,
            )
    if given.json:
        settings = {key: str(value) for key, value in vars(given).items() if key != "json"}
        write_json(given.json, environment, {"settings": settings, "results": results})
    wrong = [found["strategy"] for found in results if not found["equal_to_first"] and found["strategy"] != "host"]
    if wrong:
        print(f"\nNOT equal to {results[0]['strategy']} in every digit: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
