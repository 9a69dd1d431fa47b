"""How close does each policy come to the fewest misses possible (Belady's)?

Runs the planner over one Zipf trace for several cache sizes, without any rows. Misses are the unique rows of a batch
that are not in the cache. Batches of the warm-up do not count.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from environment import describe, print_heading, write_json
from torch import Tensor
from zipf import Zipf

import hotrows
from hotrows.cache.policies.frequency import Frequency
from hotrows.cache.policies.lookahead import Lookahead

POLICIES = ("belady", "lookahead", "lru", "lfu", "frequency", "random", "lookahead+")
RIVALS = ("lru", "lfu", "frequency")
SHARES = (0.75, 1.0, 1.5, 3.0, 6.0, 12.0)  # capacities in percent of the rows
TARGET_SHARE = 1.5  # the capacity at which the limit must hold
LIMIT = 1.10  # misses of lookahead over Belady's, at most


def make_policy(name: str, counts: Tensor) -> str | hotrows.Policy:
    """The policy of a column. Two of them get the frequencies of the rows."""
    if name == "frequency":
        return Frequency(counts)
    return Lookahead(counts) if name == "lookahead+" else name


class WindowFacts(NamedTuple):
    """What a window knows, over windows after the warm-up that do not overlap."""

    unique: int  # the median number of unique rows of a window
    fewest_seen: int  # unique rows of a window that were looked up before it, so that keeping them may pay: the fewest
    most_seen: int  # and the most of all windows


def window_facts(trace: Sequence[Tensor], num_rows: int, window: int, warm_up: int) -> WindowFacts:
    seen = torch.zeros(num_rows, dtype=torch.bool)
    for batch in trace[:warm_up]:
        seen[batch] = True
    unique, known = [], []
    for start in range(warm_up, len(trace) - window + 1, window):
        rows = torch.unique(torch.cat([batch.flatten() for batch in trace[start : start + window]]))
        unique.append(rows.numel())
        known.append(int(seen[rows].sum()))
        seen[rows] = True
    return WindowFacts(sorted(unique)[len(unique) // 2], min(known), max(known))


def measure(trace: list[Tensor], counts: Tensor, window: int, warm_up: int) -> list[dict[str, Any]]:
    """Misses of every policy at every capacity."""
    results = []
    for share in SHARES:
        capacity = round(counts.numel() * share / 100)
        misses = {}
        for name in POLICIES:
            found = hotrows.simulate(trace, make_policy(name, counts), capacity=capacity, window=window)
            misses[name] = int(found.misses[warm_up:].sum())
        results.append({"share": share, "capacity": capacity, "misses": misses})
        print_row(results[-1])
    return results


def print_row(result: dict[str, Any]) -> None:
    misses = result["misses"]
    cells = "".join(f"{misses[name]:>11,} {misses[name] / misses['belady']:4.2f}" for name in POLICIES)
    print(f"{result['share']:5.2f}% {result['capacity']:>8,}{cells}", flush=True)


def judge(results: list[dict[str, Any]], facts: WindowFacts, window: int) -> dict[str, Any]:
    """Print and return whether lookahead is within the limit, and ahead of its rivals."""
    within, ahead = {}, {}
    print(f"\n(a) lookahead has at most {LIMIT:.2f} times Belady's misses:")
    for result in results:
        share, misses = result["share"], result["misses"]
        ratio = misses["lookahead"] / misses["belady"]
        within[share] = ratio <= LIMIT
        beyond = result["capacity"] > facts.fewest_seen
        why = "   the cache is larger than what the window knows" if beyond else ""
        print(f"    {share:5.2f}%  {ratio:.3f}  {'yes' if within[share] else 'NO '}{why}")
    print(
        f"    A window of {window} batches has {facts.unique:,} unique rows, and {facts.fewest_seen:,} to "
        f"{facts.most_seen:,} of them were looked up before it,\n    so that keeping them may pay. A larger cache also "
        f"holds rows that the window does not know. For these rows\n    lookahead goes by past counts, while Belady's "
        f"knows the whole future."
    )
    print(f"(b) lookahead has fewer misses than {', '.join(RIVALS)}:")
    for result in results:
        share, misses = result["share"], result["misses"]
        best = min(RIVALS, key=lambda name: misses[name])
        ahead[share] = misses["lookahead"] < misses[best]
        print(
            f"    {share:5.2f}%  {'yes' if ahead[share] else 'NO '}  {misses['lookahead'] / misses[best]:.2f} times "
            f"the misses of the best of them, {best}"
        )
    passed = within[TARGET_SHARE] and all(ahead.values())
    print(
        "    frequency and lookahead+ know the true distribution, which is the best that past data can give. (The "
        "counts of this\n    trace would contain the future.)"
    )
    print(f"\n{'PASSED' if passed else 'FAILED'}: required are (a) at {TARGET_SHARE}%, and (b) at every capacity.")
    return {"within_limit": within, "ahead_of_rivals": ahead, "passed": passed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the trace (default 200000)")
    parser.add_argument("--exponent", type=float, default=1.18, help="of the Zipf distribution (default 1.18)")
    parser.add_argument("--batches", type=int, default=320, help="batches of the trace (default 320)")
    parser.add_argument("--lookups", type=int, default=4096, help="lookups of a batch (default 4096)")
    parser.add_argument("--window", type=int, default=64, help="batches the policy knows ahead (default 64)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results to this file")
    arguments = parser.parse_args()
    if arguments.batches < 2 * arguments.window:
        parser.error(f"--batches is {arguments.batches}, give at least twice the window: {2 * arguments.window}")

    torch.set_num_threads(1)
    environment = describe()
    print_heading(__doc__.splitlines()[0], environment)
    zipf = Zipf(arguments.rows, arguments.exponent)
    trace = [zipf.draw([arguments.lookups]) for _ in range(arguments.batches)]
    warm_up = arguments.batches // 5
    facts = window_facts(trace, arguments.rows, arguments.window, warm_up)
    print(
        f"{arguments.rows:,} rows, {arguments.batches} batches of {arguments.lookups} lookups, Zipf exponent "
        f"{arguments.exponent}, window {arguments.window}.\n"
        f"Misses after the first {warm_up} batches, and how many times Belady's they are:\n"
    )
    print(f"{'capacity':>15}{''.join(f'{name:>16}' for name in POLICIES)}")
    results = measure(trace, zipf.counts, arguments.window, warm_up)
    verdict = judge(results, facts, arguments.window)
    if arguments.json:
        settings = {
            "rows": arguments.rows, "exponent": arguments.exponent, "batches": arguments.batches,
            "lookups": arguments.lookups, "window": arguments.window, "warm_up": warm_up,
        }  # fmt: skip
        write_json(
            arguments.json,
            environment,
            {"settings": settings, "window": facts._asdict(), "results": results, "verdict": verdict},
        )
    return 0 if verdict["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
