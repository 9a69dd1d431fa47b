"""The unique ids of a batch, for users who want to see them (HECA's DSF: DeduplicateKeyId and GlobalKeyId)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.nn.table_set import TableSet
from hotrows.ops.unique import UniqueRows


@dataclass(frozen=True)
class Deduplicated:
    """The lookups of one table in a batch: `unique_ids[inverse]` gives its ids back."""

    unique_ids: Tensor  # int64 [U], ascending
    inverse: Tensor  # int64, [B, features of the table], or [lookups] of a Jagged


def split_by_table(tables: TableSet, unique: UniqueRows, shape: Sequence[int] | None) -> dict[str, Deduplicated]:
    """Cut the unique rows of tables of one dim into the unique ids of each table. The rows ascend, table by table.

    Args:
        shape: [B, F] of the batch if its bags have one id each.
    """
    rows = unique.rows[: int(unique.num)]
    ends = torch.tensor([tables.first_row[t.name] + t.num_rows for t in tables.tables], device=rows.device)
    bounds = [0, *torch.searchsorted(rows, ends).tolist()]
    inverse = unique.inverse.long()
    num_columns = sum(len(table.feature_names) for table in tables.tables)
    found, column = {}, 0
    for number, table in enumerate(tables.tables):
        first, last = bounds[number], bounds[number + 1]
        num_features = len(table.feature_names)
        if shape is None:
            mine = inverse[(inverse >= first) & (inverse < last)]
        else:
            mine = inverse.view(shape[0], num_columns)[:, column : column + num_features]
        column += num_features
        found[table.name] = Deduplicated(rows[first:last] - tables.first_row[table.name], mine - first)
    return found
