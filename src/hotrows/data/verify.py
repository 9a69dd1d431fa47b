"""Compares all files of a prepared data set with the checksums in its `dataset.json`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotrows.data.checksums import sha256_of_file
from hotrows.data.description import DESCRIPTION, Description, read_description

_THREADS = 4  # hashlib releases Python's global lock


@dataclass(frozen=True)
class Damage:
    """A file that is not as it was written, and how it differs."""

    file: str
    problem: str


@dataclass(frozen=True)
class VerifyReport:
    directory: Path
    num_files: int
    num_bytes: int
    damaged: tuple[Damage, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "data": str(self.directory), "ok": not self.damaged, "files": self.num_files, "bytes": self.num_bytes,
            "damaged": [asdict(damage) for damage in self.damaged],
        }  # fmt: skip


def verify(directory: Path, progress: Callable[[str, float], None] | None = None) -> VerifyReport:
    """Read every file of a prepared directory, and list those that are missing or have changed.

    Args:
        progress: called with `verifying` and the share of the bytes that is read, 0 to 1.
    """
    description = read_description(directory)
    names = description.all_files
    unknown = [name for name in names if name not in description.checksums]
    if unknown:
        raise ValueError(
            f"{directory / DESCRIPTION} has no checksum of {unknown[0]}: the data cannot be verified; "
            "prepare the data again to have checksums"
        )
    total = max(sum(description.sizes.get(name, 1) for name in names), 1)
    done = 0
    damaged = []
    with ThreadPoolExecutor(_THREADS) as pool:
        for name, problem in zip(names, pool.map(lambda name: _problem(description, name), names), strict=True):
            damaged += [Damage(name, problem)] if problem else []
            done += description.sizes.get(name, 1)
            if progress:
                progress("verifying", done / total)
    return VerifyReport(directory, len(names), total, tuple(damaged))


def _problem(description: Description, name: str) -> str:
    """How a file differs from what was written; empty if it does not."""
    path, expected = description.directory / name, description.checksums[name]
    try:
        size = path.stat().st_size
        if size != description.sizes.get(name, size):
            return f"it has {size:,} bytes, {DESCRIPTION} says {description.sizes[name]:,}"
        found = sha256_of_file(path)
    except FileNotFoundError:
        return "this file is missing"
    except OSError as error:
        return f"this file cannot be read ({error})"
    if found != expected:
        return f"its contents have changed, the SHA-256 is {found}, {DESCRIPTION} says {expected}"
    return ""
