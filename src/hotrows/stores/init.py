"""Initial values of rows, from (seed, table, id) alone: the same in every tier, in any order, for ids that come late.

Uniform values are made of integer arithmetic and exactly rounded float operations, so a CPU and a GPU agree on every
bit. Normal values need logarithms, on which they would not agree, and are always made on the CPU.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hotrows.ops.hash_table.reference import mix
from hotrows.stores.record import WEIGHT, RecordLayout
from hotrows.stores.row_order import Numbering
from hotrows.table import Init, Table

NAMED = ("uniform", "normal", "uniform(0.1)", "normal(0.1)")  # the number may be another one
_NAMED = re.compile(r"(uniform|normal)(?:\(([0-9.eE+-]+)\))?")
GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as int64 spreads successive counters over all 64 bits
FILL_BYTES = 1 << 26  # of records that are made at a time


def check_init(init: Init) -> None:
    """Raise ValueError if these are no initial values that a table can have."""
    if not callable(init):
        _read(init)


def _read(init: object) -> tuple[str, float | None]:
    """The distribution that a text names, and the number in parentheses if there is one."""
    found = _NAMED.fullmatch(init) if isinstance(init, str) else None
    try:
        scale = None if found is None or found[2] is None else float(found[2])
    except ValueError:
        found = scale = None
    if found is None or (scale is not None and not 0 <= scale < math.inf):
        raise ValueError(f"init is {init!r}: give one of {', '.join(NAMED)}, or a function (ids, dim) → [n, dim]")
    return found[1], scale


def table_key(seed: int, table: str) -> int:
    """A 63-bit key from the seed and the table's name."""
    digest = hashlib.sha256(f"{seed}/{table}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def initial_values(init: Init, ids: Tensor, dim: int, num_rows: int, key: int) -> Tensor:
    """float32 [n, dim] for int64 [n] ids of a table of `num_rows` rows, on the device of `ids`."""
    if callable(init):
        values = init(ids.cpu(), dim)
        if not isinstance(values, Tensor) or values.shape != (ids.numel(), dim):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"the init function answered {got}, expected a tensor of shape {(ids.numel(), dim)}")
        return values.to(device=ids.device, dtype=torch.float32)
    distribution, scale = _read(init)
    if distribution == "uniform":
        bits = random_bits(ids, dim, key)
        unit = (bits >> 40 & 0xFFFFFF).float() * 2.0**-23 - 1.0
        return unit * (1.0 / math.sqrt(num_rows) if scale is None else scale)
    bits = random_bits(ids.cpu(), 2 * dim, key)
    unit = ((bits >> 11 & ((1 << 53) - 1)).double() + 0.5) * 2.0**-53
    radius = torch.sqrt(-2.0 * torch.log(unit[:, :dim]))
    values = radius * torch.cos(2.0 * math.pi * unit[:, dim:])
    return (values if scale is None else values * scale).float().to(ids.device)


def random_bits(ids: Tensor, width: int, key: int) -> Tensor:
    """int64 [n, width] from a counter-based generator; the counter of a number is its position in the table."""
    column = torch.arange(width, device=ids.device)
    return mix((ids.unsqueeze(1) * width + column + key) * GOLDEN)


def initial_records(
    tables: Sequence[Table],
    layout: RecordLayout,
    device: torch.device,
    seed: int,
    numbering: Numbering | None = None,
) -> Iterator[tuple[slice | Tensor, Tensor]]:
    """Make the initial records of all rows on `device`, some at a time: (rows of the store, records [n, words])."""
    step = max(1, FILL_BYTES // layout.num_bytes)
    first_row = 0
    for table in tables:
        key = table_key(seed, table.name)
        for start in range(0, table.num_rows, step):
            stop = min(start + step, table.num_rows)
            ids = torch.arange(start, stop, device=device)
            records = torch.zeros(stop - start, layout.words, dtype=layout.dtype, device=device)
            weights = initial_values(table.init, ids, layout.dim, table.num_rows, key)
            layout.values(records, WEIGHT).copy_(weights)
            for field in layout.state:
                layout.values(records, field.name).fill_(field.initial_value)
            rows = slice(first_row + start, first_row + stop)
            yield (rows if numbering is None else numbering.row_of[rows].long()), records
        first_row += table.num_rows
