"""The union of the unique rows of several batches, which are planned as one batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hotrows.cache.planning.protocol import Part
from hotrows.ops.rows import filled
from hotrows.ops.unique import UniqueRows, unique_rows


def union_of(batches: Sequence[UniqueRows]) -> tuple[UniqueRows, list[Part]]:
    """The union of the unique rows of several batches, and where each batch finds its rows in it.

    The rows of a batch may be in any order, as they are if the store has a row order. Nothing waits for the device.

    Returns:
        The union, its rows ascending. The difference of two consecutive `starts` is how many lookups a row has in all
        batches. The union has no lookups of its own: `inverse`, `order` and `block_rows` are empty.
    """
    rows = [batch.rows[: filled(batch.rows, batch.num)] for batch in batches]
    union = unique_rows(torch.cat(rows))
    # Behind the last unique row of a batch, all `starts` are equal, so the padding has no lookups.
    occurrences = torch.cat([_occurrences(batch, each.numel()) for batch, each in zip(batches, rows, strict=True)])
    in_order = occurrences[union.order]
    lookups_before = torch.cat([in_order.new_zeros(1), torch.cumsum(in_order, 0, dtype=torch.int32)])
    nothing = union.inverse[:0]
    in_union = torch.split(union.inverse, [each.numel() for each in rows])
    parts = [Part(batch, each) for batch, each in zip(batches, in_union, strict=True)]
    starts = lookups_before[union.starts]
    return UniqueRows(union.rows, union.num, nothing, nothing, starts, nothing), parts


def _occurrences(unique: UniqueRows, length: int) -> Tensor:
    """How many lookups each of the first `length` unique rows has, int32."""
    return unique.starts[1 : length + 1] - unique.starts[:length]
