"""How good are models that are trained with no setting but the data? `python benchmarks/quality.py DATA...`

Each DATA is a directory that `hotrows prepare` has written. For every model and seed, `hotrows train --data DATA` is
run with nothing else but the model's name and the seed. Beside them stands a logistic regression with hashed ids,
trained on the same split: a model with tables that is worse than it is not worth its tables. It prints the mean AUC
over the seeds, and the exit code is 1 if a mean is more than 0.01 below the regression's, or a run fails. Data with
several ids per column have no regression beside them; there the mean must be at least 0.6.

Settings are chosen on the validation split (the default here). Look at the test once, with --split test.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from environment import describe, print_heading
from torch import Tensor, nn

from hotrows.batch import Batch
from hotrows.data.dataset import open_dataset
from hotrows.data.schema import DataSet
from hotrows.json_text import json_text
from hotrows.models import MODELS
from hotrows.train.config import RunConfig
from hotrows.train.metrics import ClickMetrics
from hotrows.train.run import run

BITS = 20  # of a hash
RATES = (0.02, 0.05, 0.1, 0.2)  # of the regression; the one with the best validation AUC counts
EPOCHS = 3
ALLOWED_BELOW = 0.01
LEAST_ALONE = 0.6
PRESETS = tuple(name for name in MODELS if ":" not in name)


class HashedRegression(nn.Module):
    """One weight for each hashed (column, id), one for each bucket of each dense value, and a bias."""

    def __init__(self, num_dense: int, num_features: int) -> None:
        super().__init__()
        self.weights = nn.EmbeddingBag(1 << BITS, 1, mode="sum")
        nn.init.zeros_(self.weights.weight)
        self.bias = nn.Parameter(torch.zeros(()))
        self._columns = torch.arange(num_dense + num_features) * 0x9E3779B97F4A7C1 % (1 << 61)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        buckets = (2.0 * torch.log1p(dense.clamp(min=0))).long() + (dense < 0).long() * -1
        keys = torch.cat([buckets, ids], 1) * 0x2545F4914F6CDD1D + self._columns
        hashed = (keys ^ (keys >> 29)) % (1 << BITS)
        found: Tensor = self.weights(hashed).squeeze(1) + self.bias
        return found


def regression(data: DataSet, split: str) -> tuple[float, float]:
    """The AUC of a hashed logistic regression on validation and on the wanted split, at its best rate and epoch."""
    best = (-math.inf, math.nan)
    for rate in RATES:
        model = HashedRegression(len(data.schema.dense), len(data.schema.categorical))
        optimizer = torch.optim.Adagrad(model.parameters(), lr=rate)
        for _ in range(EPOCHS):
            for batch in data.loader("train", 256):
                optimizer.zero_grad()
                nn.functional.binary_cross_entropy_with_logits(_logits(model, batch), batch.label).backward()
                optimizer.step()
            valid = _auc(model, data, "valid")
            if valid > best[0]:
                best = (valid, _auc(model, data, split))
    return best


def _logits(model: HashedRegression, batch: Batch) -> Tensor:
    assert isinstance(batch.ids, Tensor), "the regression takes one id per column"
    found: Tensor = model(batch.dense, batch.ids)
    return found


@torch.no_grad()
def _auc(model: HashedRegression, data: DataSet, split: str) -> float:
    metrics = ClickMetrics()
    for batch in data.loader(split, 8192):
        metrics.add(_logits(model, batch), batch.label)
    result = metrics.result()
    assert result is not None
    return result["auc"]


def trained(data: str, model: str, seed: int, split: str, settings: dict[str, Any]) -> float:
    """The AUC of a run with nothing given but the model, the seed and `settings`."""
    with tempfile.TemporaryDirectory() as directory:
        content: dict[str, Any] = {"data": data, "out": f"{directory}/run", "seed": seed, "save": False}
        content["model"] = {"name": model}
        for key, value in settings.items():
            section, _, name = key.rpartition(".")
            (content.setdefault(section, {}) if section else content)[name] = value
        summary = run(RunConfig.from_dict(content, "benchmark"), progress=False).summary
    found: float = summary[split]["auc"]
    return found


def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    settings = dict(_setting(text) for text in given.set)
    for name in given.data:
        data = open_dataset(name)
        base, wanted = None, LEAST_ALONE
        if not data.schema.has_sequences:
            base = regression(data, given.split)[1]
            wanted = base - ALLOWED_BELOW
        beside = "no regression" if base is None else f"hashed logistic regression {base:.4f} on {given.split}"
        print(f"{Path(name).name}: {beside}", flush=True)
        for model in given.models:
            found = []
            for seed in range(given.seeds):
                try:
                    found.append(trained(name, model, seed, given.split, settings))
                except Exception as error:
                    found.append(math.nan)
                    print(f"  {model}, seed {seed} failed: {error}", flush=True)
            good = mean(found) >= wanted
            listed = ", ".join(f"{auc:.4f}" for auc in found)
            print(f"  {'yes' if good else 'NO '}  {model}: mean {mean(found):.4f} ({listed})", flush=True)
            yield {"data": Path(name).name, "model": model, "regression": base, "aucs": found, "good": good}


def _setting(text: str) -> tuple[str, Any]:
    """One of --set: `optimizer.lr=0.05`."""
    key, _, value = text.partition("=")
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="prepared directories")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=PRESETS, metavar="MODEL",
                        help=f"default: {', '.join(PRESETS)}")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=3, help="runs of each model (default 3)")
    parser.add_argument("--split", choices=("valid", "test"), default="valid", help="default: valid")
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING=VALUE", help="such as optimizer.lr=0.05")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results to this file")
    given = parser.parse_args(arguments)
    environment = describe("cpu")
    print_heading(__doc__.splitlines()[0], environment)
    results = []
    for each in measure(given):
        results.append(each)
        if given.json:
            given.json.write_text(json_text({"environment": environment, "split": given.split, "set": given.set,
                                             "seeds": given.seeds, "results": results}, indent=2) + "\n")  # fmt: skip
    return int(not all(each["good"] for each in results))


if __name__ == "__main__":
    sys.exit(main())
