"""The record of the last run of the GPU tests, and whether the code that only a GPU runs is still the same.

CI has no GPU. It prints what this script finds, so that a reader of the log knows which code has changed since the GPU
tests ran last; it never fails for that. The record holds a digest of every such file, so the answer needs no history: a
shallow clone and a copy without `.git` get the same one.

    python tools/gpu_record.py
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path("benchmarks/results/gpu-tests.json")

# Code that no test on a CPU runs as it is: kernels run in Triton's interpreter there, streams are threads, and nothing
# is captured into a CUDA graph.
GPU_ONLY = (
    "src/hotrows/**/kernel*.py",
    "src/hotrows/runtime/*.py",
    "src/hotrows/graphs/*.py",
    "src/hotrows/dense/**/*.py",
    "src/hotrows/cache/streams.py",
    "src/hotrows/cache/transfer.py",
    "src/hotrows/cache/planning/*graph*.py",
    "src/hotrows/cache/planning/buffers.py",
    "src/hotrows/stores/pinned_memory.py",
    "src/hotrows/stores/device.py",
)


def digests(root: Path) -> dict[str, str]:
    """The files that only a GPU runs, each with the start of its SHA-256."""
    paths = sorted({path for pattern in GPU_ONLY for path in root.glob(pattern)})
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in paths}


def commit(root: Path) -> str:
    """The commit of the tree: HOTROWS_COMMIT if it is set, else what git says, else what .git/HEAD says."""
    if os.environ.get("HOTROWS_COMMIT"):
        return os.environ["HOTROWS_COMMIT"]
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=root, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return found.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return _commit_from_files(root / ".git")


def _commit_from_files(git: Path) -> str:
    """The commit that .git/HEAD names, on a machine without the git program."""
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        if (git / name).is_file():
            return (git / name).read_text().strip()
        for line in (git / "packed-refs").read_text().splitlines():
            if line.endswith(f" {name}"):
                return line.split()[0]
    except OSError:
        pass
    return "unknown"


def changed_files(recorded: dict[str, str], now: dict[str, str]) -> list[str]:
    """The paths whose contents differ, with the word `new` or `deleted` where only one side has the file."""
    found = []
    for path in sorted(recorded.keys() | now.keys()):
        if path not in recorded:
            found.append(f"{path} (new)")
        elif path not in now:
            found.append(f"{path} (deleted)")
        elif recorded[path] != now[path]:
            found.append(path)
    return found


def describe(record: dict[str, Any] | None, root: Path) -> list[str]:
    """What CI prints about the record, line by line."""
    if record is None:
        return [f"GPU tests: there is no record in {RECORD}. Run `make gpu-test` on a machine with a GPU."]
    counts = record["counts"]
    lines = [
        f"GPU tests: the last recorded run was at commit {record['commit']} on {record['device']}: "
        f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped "
        f"in {record['seconds']:.0f} s."
    ]
    if "gpu_only_files" not in record:
        return [*lines, "GPU tests: the record has no digests, so it cannot be told what has changed since."]
    changed = changed_files(record["gpu_only_files"], digests(root))
    if not changed:
        return [*lines, "GPU tests: code that only a GPU runs has not changed since."]
    lines.append(
        f"GPU tests: {len(changed)} file(s) that only a GPU runs have changed since. Run `make gpu-test` again:"
    )
    return lines + [f"  {path}" for path in changed]


def load(path: Path) -> dict[str, Any] | None:
    """The record in a file; None where there is none or it is not JSON."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (default: the one of this script)")
    parser.add_argument("--record", type=Path, help=f"the record to compare with (default: {RECORD})")
    given = parser.parse_args(arguments)
    print("\n".join(describe(load(given.record or given.root / RECORD), given.root)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
