"""How the tests of a run are divided over processes: what each test is expected to take, and which tests go together.

A process of pytest takes seconds to start, so a shard is worth about half a minute of tests. A test that draws its
cases at random and takes longer than a shard is divided as well: each of its processes draws a part of the cases, from
a seed of its own.
"""

import ast
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

UNKNOWN_TEST_SECONDS = 0.5
# Tests that compile many kernels, for the case that there is no record of an earlier run, or not of them.
COMPILING_TEST_SECONDS = {"tests/ops/test_backward_update.py": 8.0, "tests/programs/test_programs.py": 20.0}
UNKNOWN_EXAMPLE_SECONDS = 0.6  # most examples compile a kernel
MIN_EXAMPLES_PER_PART = 5
MAX_TESTS_PER_SHARD = 120


@dataclass(frozen=True)
class Shard:
    """Tests that one process runs, and the share of its random cases that each of them draws."""

    nodes: tuple[str, ...]
    seconds: float  # estimated
    examples: float = 1.0  # goes into HOTROWS_EXAMPLES
    part: int = 0  # which part of a divided test this is
    num_parts: int = 1
    is_retry: bool = False

    @property
    def label(self) -> str:
        """The files of the shard, or the test that it is a part of."""
        if self.num_parts > 1:
            return f"{self.nodes[0]} (part {self.part + 1} of {self.num_parts})"
        files = list(dict.fromkeys(file_of(node) for node in self.nodes))
        more = f" and {len(files) - 2} more files" if len(files) > 2 else ""
        return f"{', '.join(files[:2])}{more} ({len(self.nodes)} tests)"


@dataclass
class Durations:
    """What tests took in an earlier run: the slow ones each, the others by the mean of their file."""

    slow_tests: Mapping[str, float] = field(default_factory=dict)
    file_means: Mapping[str, float] = field(default_factory=dict)
    examples: float = 1.0  # the share of random cases that the earlier run drew

    @staticmethod
    def of(record: Mapping[str, Any] | None) -> "Durations":
        """The durations in a record that `tools/gpu_test.py` has written; none if it has none."""
        if not record or "slow_tests" not in record:
            return Durations()
        slow = dict(record["slow_tests"])
        means = {}
        for path, counts in record["files"].items():
            slow_here = {node: seconds for node, seconds in slow.items() if file_of(node) == path}
            num_quick = counts["passed"] + counts["failed"] + counts["skipped"] - len(slow_here)
            if num_quick > 0:
                means[path] = max(0.0, counts["seconds"] - sum(slow_here.values())) / num_quick
        return Durations(slow, means, float(record.get("examples", 1.0)))

    def estimate(self, node: str, num_examples: int | None, examples: float) -> float:
        """Seconds that one test is expected to take when it draws the share `examples` of its random cases."""
        seconds = self.slow_tests.get(node, self.file_means.get(file_of(node)))
        if num_examples is None:
            unknown = COMPILING_TEST_SECONDS.get(file_of(node), UNKNOWN_TEST_SECONDS)
            return unknown if seconds is None else seconds
        if seconds is None:
            return UNKNOWN_EXAMPLE_SECONDS * num_examples * examples
        return seconds * examples / self.examples


def file_of(node: str) -> str:
    return node.split("::", 1)[0]


def num_examples_of(root: Path, node: str) -> int | None:
    """How many random cases a test draws at `HOTROWS_EXAMPLES=1`; None if the number does not depend on it."""
    return _drawn_tests(root / file_of(node)).get(node.rsplit("::", 1)[-1].split("[", 1)[0])


@cache
def _drawn_tests(path: Path) -> dict[str, int]:
    """The tests of a file whose decorators call `examples(number)`, each with its number."""
    found = {}
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef):
            continue
        for part in (part for decorator in function.decorator_list for part in ast.walk(decorator)):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "examples":
                numbers = [argument.value for argument in part.args if isinstance(argument, ast.Constant)]
                found[function.name] = next((number for number in numbers if isinstance(number, int)), 100)
    return found


def make_shards(
    nodes: Sequence[str], root: Path, durations: Durations, num_workers: int, examples: float = 1.0
) -> list[Shard]:
    """All tests in shards of about equal length, the longest first."""
    drawn = {node: num_examples_of(root, node) for node in nodes}
    seconds = {node: durations.estimate(node, drawn[node], examples) for node in nodes}
    length = min(60.0, max(15.0, sum(seconds.values()) / (4 * num_workers)))
    whole, shards = [], []
    for node in nodes:
        number = drawn[node]
        if number is not None and seconds[node] > length:
            shards += _parts(node, number, seconds[node], examples, length)
        else:
            whole.append(node)
    for chunk in _packed(_chunks(whole, seconds, length), seconds, length):
        shards.append(Shard(tuple(chunk), sum(seconds[node] for node in chunk), examples))
    return sorted(shards, key=lambda shard: -shard.seconds)


def _parts(node: str, num_examples: int, seconds: float, examples: float, length: float) -> list[Shard]:
    """One test as several shards that together draw at least as many cases as it draws alone."""
    wanted = max(1, int(num_examples * examples))
    num_parts = max(1, min(math.ceil(seconds / length), wanted // MIN_EXAMPLES_PER_PART))
    if num_parts == 1:
        return [Shard((node,), seconds, examples)]
    # The tests round the number of cases down, so the share lies half a case above a whole number of them.
    share = (math.ceil(wanted / num_parts) + 0.5) / num_examples
    return [Shard((node,), seconds / num_parts, share, part, num_parts) for part in range(num_parts)]


def _chunks(nodes: Iterable[str], seconds: Mapping[str, float], length: float) -> list[list[str]]:
    """Neighbouring tests of one file together, as many as fit into a shard."""
    chunks: list[list[str]] = []
    for node in nodes:
        last = chunks[-1] if chunks else None
        if (
            last is None
            or file_of(last[0]) != file_of(node)
            or len(last) >= MAX_TESTS_PER_SHARD
            or sum(seconds[other] for other in last) + seconds[node] > length
        ):
            chunks.append([node])
        else:
            last.append(node)
    return chunks


def _packed(chunks: list[list[str]], seconds: Mapping[str, float], length: float) -> list[list[str]]:
    """Chunks of several files in one shard where there is room: the longest first, each into the first it fits into."""
    bins: list[tuple[float, list[str]]] = []
    for chunk in sorted(chunks, key=lambda chunk: -sum(seconds[node] for node in chunk)):
        needed = sum(seconds[node] for node in chunk)
        for at, (taken, nodes) in enumerate(bins):
            if taken + needed <= length and len(nodes) + len(chunk) <= MAX_TESTS_PER_SHARD:
                bins[at] = (taken + needed, nodes + chunk)
                break
        else:
            bins.append((needed, list(chunk)))
    return [nodes for _, nodes in bins]
