"""Small logs for tests, written line by line or generated, and a prepared directory read back."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SHARED = Path(__file__).parents[3] / "shared" / "data"


def criteo_line(label: object = 0, integers: dict[int, object] | None = None, **categories: str) -> str:
    """One line of a Criteo log. Fields that are not given are missing."""
    numbers = ["" if (integers or {}).get(i) is None else str((integers or {})[i]) for i in range(1, 14)]
    return "\t".join([str(label), *numbers, *(categories.get(f"C{i}", "") for i in range(1, 27))])


def write_lines(path: Path, lines: list[str]) -> Path:
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def describe(out: Path) -> dict[str, Any]:
    described: dict[str, Any] = json.loads((out / "dataset.json").read_text())
    return described


def read_split(out: Path, split: str) -> pa.Table:
    files = describe(out)["splits"][split]["files"]
    return pa.concat_tables([pq.read_table(out / file) for file in files])


def read_vocabulary(out: Path, table: str) -> list[tuple[str | None, int, int]]:
    found = pq.read_table(out / describe(out)["vocabularies"][table])
    return [(row["value"], row["id"], row["count"]) for row in found.to_pylist()]
