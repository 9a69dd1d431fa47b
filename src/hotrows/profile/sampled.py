"""Frequencies from a sample of the training batches, where counting all of them would take too long."""

import itertools
import math

import torch
from torch import Tensor

from hotrows.batch import Jagged
from hotrows.data.schema import DataSet


def sampled_counts(data: DataSet, share: float, batch_size: int, seed: int = 0) -> dict[str, Tensor]:
    """How often each id of each table occurs in a share of the training batches, drawn at random; at least in one."""
    columns = data.schema.categorical
    counts = {table: torch.zeros(num_rows, dtype=torch.int64) for table, num_rows in data.schema.tables.items()}
    loader = data.loader("train", batch_size, shuffle=True, seed=seed)
    num_batches = max(1, math.ceil(round(share * len(loader), 6)))
    for batch in itertools.islice(loader, num_batches):
        for column, ids in zip(columns, _by_column(batch.ids), strict=True):
            counts[column.table].index_add_(0, ids, torch.ones_like(ids, dtype=torch.int64))
    return counts


def _by_column(ids: Tensor | Jagged) -> list[Tensor]:
    if isinstance(ids, Jagged):
        return list(torch.split(ids.values, ids.lengths.sum(1).tolist()))
    return list(ids.unbind(1))
