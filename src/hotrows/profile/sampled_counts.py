"""Frequencies from a sample: how often each id occurs in a random part of the training split."""

import math
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from hotrows.data.schema import DataSet
from hotrows.profile.lookups import RowNumbers

BATCH_SIZE = 1024  # small, because the sample consists of whole batches


def sampled_counts(data: DataSet, share: float, seed: int = 0) -> dict[str, Tensor]:
    """Count ids in the first batches of a shuffled pass over the training split, int64 [rows] by table.

    Only these batches are read. They are as random as the loader's order: for a prepared data set, the loader draws
    row groups at random and shuffles the samples of several row groups together.

    Args:
        share: the share of the samples to count, above 0; 1 counts all of them.
    """
    size = max(1, min(BATCH_SIZE, math.ceil(share * data.num_samples("train"))))
    loader = data.loader("train", size, shuffle=True, seed=seed)
    numbers = RowNumbers(data.schema)
    counts = torch.zeros(numbers.num_rows, dtype=torch.int64)
    for batch in islice(loader, math.ceil(round(share * len(loader), 6))):
        rows = torch.from_numpy(numbers.lookups(batch.ids).rows.astype(np.int64))
        counts.index_add_(0, rows, torch.ones_like(rows))
    tables = data.schema.tables
    return dict(zip(tables, torch.split(counts, list(tables.values())), strict=True))
