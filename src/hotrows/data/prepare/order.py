"""Checks whether a log is already in the order of time."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def is_sorted(arrays: Iterable[pa.Array]) -> bool:
    """True if values never decrease, from the first array to the last."""
    last: Any = None
    for values in arrays:
        if len(values) == 0:
            continue
        if last is not None and pc.greater(last, values[0]).as_py():
            return False
        if not pc.all(pc.less_equal(values[:-1], values[1:]), min_count=0).as_py():
            return False
        last = values[-1]
    return True
