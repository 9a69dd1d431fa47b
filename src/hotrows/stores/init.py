"""First values of rows, from (seed, table, id) alone: the same in every tier, in any order, for ids that come late.

Uniform values are made of integer arithmetic and exactly rounded float operations, so a CPU and a GPU agree on every
bit; normal values need logarithms, on which they would not, and are always made on the CPU.
"""

import hashlib
import math

import torch
from torch import Tensor

from hotrows.ops.hash_table.reference import mix
from hotrows.table import FirstValues

NAMED = ("uniform", "normal")
GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15: successive counters are spread over all 64 bits


def check_first_values(init: FirstValues) -> None:
    if not callable(init) and init not in NAMED:
        raise ValueError(f"init is {init!r}: give one of {', '.join(NAMED)}, or a function (ids, dim) → [n, dim]")


def table_key(seed: int, table: str) -> int:
    """A 63-bit key from the seed and the table's name."""
    digest = hashlib.sha256(f"{seed}/{table}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def first_values(init: FirstValues, ids: Tensor, dim: int, num_rows: int, key: int) -> Tensor:
    """float32 [n, dim] for int64 [n] ids of a table of `num_rows` rows, on the device of `ids`."""
    if callable(init):
        values = init(ids.cpu(), dim)
        if not isinstance(values, Tensor) or values.shape != (ids.numel(), dim):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"the init function answered {got}, expected a tensor of shape {(ids.numel(), dim)}")
        return values.to(device=ids.device, dtype=torch.float32)
    if init == "uniform":
        bits = random_bits(ids, dim, key)
        unit = (bits >> 40 & 0xFFFFFF).float() * 2.0**-23 - 1.0
        return unit * (1.0 / math.sqrt(num_rows))
    bits = random_bits(ids.cpu(), 2 * dim, key)
    unit = ((bits >> 11 & ((1 << 53) - 1)).double() + 0.5) * 2.0**-53
    radius = torch.sqrt(-2.0 * torch.log(unit[:, :dim]))
    return (radius * torch.cos(2.0 * math.pi * unit[:, dim:])).float().to(ids.device)


def random_bits(ids: Tensor, width: int, key: int) -> Tensor:
    """int64 [n, width]: a counter-based generator, the counter being the place in the table."""
    column = torch.arange(width, device=ids.device)
    return mix((ids.unsqueeze(1) * width + column + key) * GOLDEN)
