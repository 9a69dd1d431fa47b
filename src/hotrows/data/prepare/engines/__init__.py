"""The engines that run the expressions: DuckDB in this process, or Spark."""

import re
from pathlib import Path

from hotrows.data.prepare.engines.base import Engine as Engine
from hotrows.data.prepare.engines.base import Part as Part
from hotrows.data.prepare.engines.base import Rejected as Rejected


def connect(name: str, memory_limit: str, work: Path) -> Engine:
    """Start the engine "duckdb" or "spark". It keeps to the memory limit and spills into `work`."""
    if not re.fullmatch(r"(?=[0.]*[1-9])([0-9]+\.?[0-9]*|\.[0-9]+) *[KMGT]i?B", memory_limit.strip(), re.IGNORECASE):
        raise ValueError(f"memory_limit={memory_limit!r}: write a size such as 4GB or 512MB")
    if name == "duckdb":
        from hotrows.data.prepare.engines.duckdb import DuckDB

        return DuckDB(memory_limit, work)
    from hotrows.data.prepare.engines.spark import Spark

    return Spark(memory_limit, work)
