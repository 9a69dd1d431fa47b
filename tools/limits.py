"""Lists the files, classes and functions under src/ that are over the limits of the house style, with their reasons.

    python tools/limits.py

The limits are 400 lines for a file, 25 methods (with properties) for a class, and 60 lines for a function. REASONS says
why an entry over a limit is one concept. The exit code is 1 if an entry has no reason, or if a reason is stale because
its entry is gone or within the limits.
"""

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_FILE_LINES = 400
MAX_METHODS = 25
MAX_FUNCTION_LINES = 60

# The name of an entry is the path under src/hotrows, and for a class or a function its name in the file behind `::`.
_KERNEL = "A Triton kernel is one function: a part of it that is called costs registers, or must pass many tensors."
_ONE_OPERATION = "The kernels of one operation and their launcher, which share constants and layouts."
REASONS: dict[str, str] = {
    "loop/scheduler.py::Scheduler": "Plans, moves and releases the tickets of one cache, most methods in a few lines. "
    "Announcing, coalescing, graphs, bad ids and slots in flight are objects of their own.",
    "nn/base.py::CachedModule": "What nn.Module, lookahead and graphed ask of a module, each in a few lines. Forward "
    "passes and tables are objects of their own.",
    "ops/backward_update/kernel.py": _ONE_OPERATION,
    "runtime/cuda_private.py": "All private calls are in one file, so that one switch turns them off and one test "
    "finds any other.",
    "dense/linear/kernel_one_output.py::_backward": _KERNEL,
    "ops/backward_update/kernel.py::_blocks": _KERNEL,
    "ops/backward_update/kernel.py::_superblocks": _KERNEL,
    "ops/backward_update/kernel.py::sum_rows": "Prepares and launches the three levels of a sum, in their order.",
    "ops/plan/kernel.py::place": _KERNEL,
    "ops/plan/kernel.py::spread": _KERNEL,
    "ops/unique/kernel.py::_scatter": _KERNEL,
    "ops/unique/kernel_columns.py::scatter_columns": _KERNEL,
    "ops/unique/kernel_parts.py::scatter_parts": _KERNEL,
}


@dataclass(frozen=True)
class Entry:
    """A file, class or function over a limit."""

    kind: str  # "file", "class" or "function"
    name: str
    size: int

    def __str__(self) -> str:
        unit = "methods" if self.kind == "class" else "lines"
        return f"{self.kind:8} {self.size:4} {unit:7}  {self.name}"


def entries_of(package: Path) -> list[Entry]:
    """The entries of a package: files, then classes, then functions, the largest first."""
    found = [entry for path in sorted(package.rglob("*.py")) for entry in _entries_of_file(path, package)]
    kinds = ["file", "class", "function"]
    return sorted(found, key=lambda entry: (kinds.index(entry.kind), -entry.size, entry.name))


def _entries_of_file(path: Path, package: Path) -> Iterator[Entry]:
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(package).as_posix()
    num_lines = len(text.splitlines())
    if num_lines > MAX_FILE_LINES:
        yield Entry("file", name, num_lines)
    yield from _entries_of_node(ast.parse(text), name, "")


def _entries_of_node(node: ast.AST, path: str, outer: str) -> Iterator[Entry]:
    for child in ast.iter_child_nodes(node):
        inner = outer
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{outer}.{child.name}" if outer else child.name
            if isinstance(child, ast.ClassDef):
                num_methods = sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in child.body)
                if num_methods > MAX_METHODS:
                    yield Entry("class", f"{path}::{inner}", num_methods)
            elif (num_lines := (child.end_lineno or child.lineno) - child.lineno + 1) > MAX_FUNCTION_LINES:
                yield Entry("function", f"{path}::{inner}", num_lines)
        yield from _entries_of_node(child, path, inner)


def problems_of(entries: Sequence[Entry], reasons: Mapping[str, str]) -> list[str]:
    """The problems of the reasons: entries without a reason, and reasons for names that are not over a limit."""
    names = {entry.name for entry in entries}
    found = [f"no reason: {entry.name}" for entry in entries if not reasons.get(entry.name)]
    return found + [f"stale reason: {name} is not over a limit" for name in reasons if name not in names]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--package", type=Path, default=ROOT / "src/hotrows", help="the package to look at")
    given = parser.parse_args(arguments)
    entries = entries_of(given.package)
    for entry in entries:
        print(f"{entry}\n          {REASONS.get(entry.name, 'NO REASON')}")
    counts = {kind: sum(entry.kind == kind for entry in entries) for kind in ("file", "class", "function")}
    print(
        f"{counts['file']} files over {MAX_FILE_LINES} lines, {counts['class']} classes over {MAX_METHODS} methods, "
        f"{counts['function']} functions over {MAX_FUNCTION_LINES} lines"
    )
    problems = problems_of(entries, REASONS)
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
