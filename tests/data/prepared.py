"""Prepared directories with known contents, for tests of what reads them."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hotrows.data.schema import SPLITS, Column, Schema

PLAIN = Schema(("I1", "I2"), (Column("C1", 50), Column("C2", 7), Column("C3", 100_000)))
SEQUENCES = Schema(("I1",), (Column("user", 90), Column("item", 60), Column("past", 60, table="item", max_length=4)))


def write_prepared(
    directory: Path,
    schema: Schema = PLAIN,
    num_samples: Mapping[str, int] | None = None,
    *,
    rows_per_group: int = 16,
    groups_per_shard: int = 3,
    seed: int = 0,
) -> dict[str, pa.Table]:
    """Write a data set of random samples, and return its splits. `I1` is the number of the sample in its split."""
    random = np.random.default_rng(seed)
    splits, tables = {}, {}
    for split in SPLITS:
        total = (num_samples or {}).get(split, 0)
        table = tables[split] = _samples(schema, total, random)
        files = []
        (directory / split).mkdir(parents=True)
        for start in range(0, total, rows_per_group * groups_per_shard):
            files.append(f"{split}/part-{len(files):05}.parquet")
            shard = table.slice(start, rows_per_group * groups_per_shard)
            pq.write_table(shard, directory / files[-1], row_group_size=rows_per_group)
        splits[split] = {"num_samples": total, "files": files}
    _write_vocabulary(directory, schema, tables["train"])
    described = {
        "format": 1,
        "name": "generated",
        "schema": {
            "dense": list(schema.dense),
            "categorical": [
                {"name": c.name, "num_ids": c.num_ids, "table": c.table, "max_length": c.max_length}
                for c in schema.categorical
            ],
        },
        "splits": splits,
        "source": {},
        "checksums": {},
    }
    (directory / "dataset.json").write_text(json.dumps(described))
    return tables


def _samples(schema: Schema, total: int, random: np.random.Generator) -> pa.Table:
    columns = {"label": pa.array((random.random(total) < 0.25).astype(np.float32))}
    for name in schema.dense:
        columns[name] = pa.array(random.random(total, dtype=np.float32))
    columns["I1"] = pa.array(np.arange(total, dtype=np.float32))
    for column in schema.categorical:
        if column.max_length == 1:
            columns[column.name] = pa.array(random.integers(0, column.num_ids, total, dtype=np.int32))
        else:
            lengths = random.integers(0, column.max_length + 1, total)
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            values = random.integers(0, column.num_ids, int(offsets[-1]), dtype=np.int32)
            columns[column.name] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
    return pa.table(columns)


def _write_vocabulary(directory: Path, schema: Schema, train: pa.Table) -> None:
    (directory / "vocabulary").mkdir()
    for name, num_rows in schema.tables.items():
        count = np.zeros(num_rows, dtype=np.int64)
        for column in schema.categorical:
            if column.table == name:
                values = train[column.name].combine_chunks()
                values = values if column.max_length == 1 else values.flatten()
                count += np.bincount(values.to_numpy(), minlength=num_rows)
        ids = np.arange(num_rows, dtype=np.int32)
        table = pa.table({"value": [str(i) for i in ids], "id": ids, "count": count})
        pq.write_table(table, directory / "vocabulary" / f"{name}.parquet")
