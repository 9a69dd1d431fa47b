"""Which skew do the tables of a log have? Prints the constants of src/hotrows/data/shapes.py.

The exponent and the offset of a column's `Skew` are those that come closest to the log in the expected shares of unique
ids in batches, and in the shares of the first 1, 4, 16, 64 and 256 ids. With --keeps, the exponents of all tables of
more than 1,000 ids are increased by the same number and their offsets multiplied by the same factor, so that
deduplication over all tables keeps the given shares at batch 1024, 2048, … (a sample repeats its ids less than the
whole log).
"""

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hotrows.data.shapes import SHAPES
from hotrows.data.skew import Skew, cumulative_share

Floats = NDArray[np.float64]
HEADS = np.array([1, 4, 16, 64, 256])
SHARED_FROM = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=list(SHAPES), help="whose columns and table sizes")
    parser.add_argument("log", type=Path, help="Criteo's tab-separated format, or Avazu's CSV")
    parser.add_argument("--keeps", type=float, nargs="*", default=[], help="e.g. 0.26 0.21 0.17 0.13")
    arguments = parser.parse_args()
    columns = SHAPES[arguments.shape].columns
    log = read_log(arguments.log, [column.name for column in columns])
    sizes = [column.num_ids for column in columns]
    batches = np.array([2**k for k in range(10, 15) if 2**k * 2 <= len(log)])
    skews = [fit(log[c.name].to_numpy(), c.num_ids, batches) for c in columns]
    for column, skew in zip(columns, skews, strict=True):
        print(f"{column.name}: {kept(skew, column.num_ids, batches).round(3)}, {skew}")
    print("all tables:", np.mean([kept(*t, batches) for t in zip(skews, sizes, strict=True)], axis=0).round(4))
    if arguments.keeps:
        wanted = np.array(arguments.keeps)
        at = batches[0] * 2 ** np.arange(len(wanted))

        def miss(more: Floats) -> float:
            found = [kept(s, n, at) for s, n in zip(shifted(skews, sizes, more), sizes, strict=True)]
            return float(((np.mean(found, axis=0) - wanted) ** 2).sum())

        skews = shifted(skews, sizes, minimize(miss, itertools.product((0.0, 0.2), (0.0, 1.0))))
        found = np.mean([kept(*t, at) for t in zip(skews, sizes, strict=True)], axis=0)
        print(f"shifted to {found.round(4)}")
    for column, skew in zip(columns, skews, strict=True):
        print(f'("{column.name}", {column.num_ids:_}, {skew.exponent:.3f}, {skew.offset:.3f}),')


def read_log(path: Path, names: list[str]) -> pd.DataFrame:
    if path.name.endswith((".csv", ".csv.gz")):
        return pd.read_csv(path, dtype=str, keep_default_na=False, usecols=names)
    criteo = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    return pd.read_csv(path, sep="\t", names=criteo, dtype=str, keep_default_na=False, usecols=names)


def fit(values: NDArray[np.object_], num_ids: int, batches: NDArray[np.int64]) -> Skew:
    ids = pd.factorize(values)[0]
    real = np.array(
        [np.mean([len(np.unique(b)) for b in ids[: len(ids) // n * n].reshape(-1, n)]) / n for n in batches]
    )
    counts = np.sort(np.bincount(ids))[::-1] / len(ids)
    real_head = np.array([counts[:k].sum() for k in HEADS])

    def miss(v: Floats) -> float:
        skew = Skew(v[0], np.exp(v[1]))
        share = kept(skew, num_ids, batches)
        head = cumulative_share(skew.quantiles(num_ids), np.minimum(HEADS, num_ids))
        relative, absolute = np.log(share / real), (share - real) / 0.1
        return float((relative**2 + 0.05 * absolute**2).mean() + 0.3 * ((head - real_head) ** 2).mean())

    best = minimize(miss, itertools.product((0.6, 0.9, 1.1, 1.3, 1.7, 2.3, 4.0), (-2.0, 0.0, 2.0, 4.0, 5.0)))
    return Skew(round(float(best[0]), 3), round(float(np.exp(best[1])), 3))


def kept(skew: Skew, num_ids: int, batches: NDArray[np.int64]) -> Floats:
    """Expected unique ids over lookups. Beyond the first thousand, ids of about the same share are grouped."""
    edges = np.arange(min(num_ids, 1000) + 1)
    if num_ids > 1000:
        edges = np.unique(np.concatenate([edges, np.geomspace(1000, num_ids, 1500).astype(np.int64), [num_ids]]))
    number = np.diff(edges)
    share = np.diff(cumulative_share(skew.quantiles(num_ids), edges)) / number
    never = np.exp(batches[:, None] * np.log1p(-np.minimum(share, 1 - 1e-12)))
    return np.asarray((number * (1 - never)).sum(axis=1) / batches)


def shifted(skews: list[Skew], sizes: list[int], more: Floats) -> list[Skew]:
    return [
        Skew(s.exponent + more[0], s.offset * np.exp(more[1])) if n > SHARED_FROM else s
        for s, n in zip(skews, sizes, strict=True)
    ]


def minimize(miss: Callable[[Floats], float], starts: "itertools.product[float]", tries: int = 400) -> Floats:
    """Minimize by a random walk from the best start. It takes only steps that go down, and its steps shrink."""
    random = np.random.default_rng(0)
    best = min((np.array(start) for start in starts), key=miss)
    least, step = miss(best), 0.3
    for _ in range(tries):
        candidate = np.clip(best + random.normal(size=2) * [step, 2 * step], [-0.5, -5.0], [6.0, 6.0])
        found = miss(candidate)
        if found < least:
            best, least = candidate, found
        else:
            step *= 0.99
    return best


if __name__ == "__main__":
    main()
