"""Whether a log lies in the order of time already."""

from collections.abc import Sequence
from pathlib import Path


def is_sorted(parts: Sequence[Path], column: str) -> bool:
    """Whether a column never falls, through all these Parquet files."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    last = None
    for part in parts:
        with pq.ParquetFile(part) as file:
            for batch in file.iter_batches(batch_size=1 << 20, columns=[column]):
                values = batch.column(0)
                if len(values) == 0:
                    continue
                if last is not None and pc.greater(last, values[0]).as_py():
                    return False
                if not pc.all(pc.less_equal(values[:-1], values[1:]), min_count=0).as_py():
                    return False
                last = values[-1]
    return True
