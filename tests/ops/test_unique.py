"""Unique rows: the kernels against the reference."""

from itertools import product
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from hotrows.cache.planning.buffers import RequestBuffers
from hotrows.ops.rows import NO_ROW
from hotrows.ops.unique import UniqueRows, kernel, reference


def check(rows: torch.Tensor, device: torch.device) -> None:
    expected = reference.unique_rows(rows)
    answer = kernel.unique_rows(rows.to(device))
    for name, ours, theirs in zip(UniqueRows._fields, answer, expected, strict=True):
        assert ours.dtype == theirs.dtype, name
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("num_lookups", [0, 1, 7, 1000, 1023, 1024, 5000])
@pytest.mark.parametrize("num_rows", [1, 10, 10**12])
def test_matches_reference(num_lookups, num_rows, device, random):
    rows = torch.randint(num_rows, (num_lookups,), generator=random)
    check(rows, device)
    rows[torch.rand(num_lookups, generator=random) < 0.3] = NO_ROW
    check(rows, device)


@pytest.mark.parametrize("num_lookups", [1, 1000, 1024])
def test_no_lookup_has_a_row(num_lookups, device):
    check(torch.full((num_lookups,), NO_ROW), device)


def test_one_hot_row(device, random):
    rows = torch.randint(1000, (4000,), generator=random)
    rows[torch.randperm(4000, generator=random)[:3000]] = 500
    check(rows, device)


class Tables(NamedTuple):
    """The first row and the number of rows of each column's table, and which columns are looked up (None for all)."""

    first_row: list[int]
    num_rows: list[int]
    columns: list[int] | None = None

    @classmethod
    def one_each(cls, num_rows: list[int], order: list[int] | None = None) -> "Tables":
        """One table for each column. The tables are in this order, by column."""
        first_row, row = [0] * len(num_rows), 0
        for column in order or range(len(num_rows)):
            first_row[column] = row
            row += num_rows[column]
        return cls(first_row, num_rows)

    def draw(self, num_samples: int, random: torch.Generator) -> Tensor:
        drawn = torch.rand(num_samples, len(self.num_rows), generator=random, dtype=torch.float64) ** 3
        ids = (drawn * torch.tensor(self.num_rows)).long()
        if self.columns is None:
            return ids
        spread = torch.full((num_samples, max(self.columns) + 2), -7)
        spread[:, self.columns] = ids
        return spread

    @property
    def key_dtype(self) -> torch.dtype:
        most = max(map(sum, zip(self.first_row, self.num_rows, strict=True)))
        return torch.int32 if most < 2**31 - 1 else torch.int64

    def order(self, num_samples: int, device: torch.device) -> Tensor | None:
        first_row, num_rows = (torch.tensor(each, device=device) for each in (self.first_row, self.num_rows))
        return kernel.column_order(first_row, num_rows, num_samples)

    def unique(self, ids: Tensor, by_column: bool, device: torch.device) -> tuple[UniqueRows, list[int]]:
        """The unique rows of a batch, and its counts on the host."""
        columns = None if self.columns is None else torch.tensor(self.columns, device=device)
        order = self.order(len(ids), device)
        assert order is not None or not by_column
        counts = torch.zeros(3, 2, dtype=torch.int32, pin_memory=device.type == "cuda")
        buffers = RequestBuffers(3, len(ids) * len(self.first_row), device, counts)
        kernel.unique_ids(
            ids.to(device), columns, torch.tensor(self.first_row, device=device),
            torch.tensor(self.num_rows, device=device), order if by_column else None, self.key_dtype,
            buffers.counts_on_device, counts, torch.tensor([BUFFER], dtype=torch.int32, device=device), buffers.arrays,
        )  # fmt: skip
        found = UniqueRows(*(each.cpu() for each in buffers.unique(BUFFER)))
        assert not counts[[0, 2]].any(), "the counts of other buffers"
        return found, counts[BUFFER].tolist()

    def unique_coalesced(
        self, ids: list[Tensor], by_column: bool, device: torch.device
    ) -> tuple[RequestBuffers, list[list[int]]]:
        """The unique rows of several batches that are sorted as one, and the counts of each on the host."""
        columns = None if self.columns is None else torch.tensor(self.columns, device=device)
        parts, coalesced = len(ids), torch.cat(ids)
        order = self.order(len(ids[0]), device)
        assert order is not None or not by_column
        counts, union_counts = (
            torch.zeros(num, 2, dtype=torch.int32, pin_memory=device.type == "cuda") for num in (3 * parts, 3)
        )
        buffers = RequestBuffers(3, len(ids[0]) * len(self.first_row), device, counts, parts, union_counts)
        kernel.unique_ids(
            coalesced.to(device), columns, torch.tensor(self.first_row, device=device),
            torch.tensor(self.num_rows, device=device), order if by_column else None, self.key_dtype,
            buffers.counts_on_device, counts, torch.tensor([BUFFER], dtype=torch.int32, device=device), buffers.arrays,
            buffers.union,
        )  # fmt: skip
        if device.type == "cuda":
            torch.cuda.synchronize()
        assert buffers.union_rows(BUFFER)[1].tolist() == union_counts[BUFFER, :1].tolist()
        return buffers, counts[BUFFER * parts : (BUFFER + 1) * parts].tolist()

    def check(self, ids: Tensor, device: torch.device) -> None:
        ours, counts = self.unique(ids, True, device)
        theirs, expected = self.unique(ids, False, device)
        assert counts == expected
        assert counts[1] == 0
        for name in UniqueRows._fields:
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


@pytest.mark.parametrize("by_column", [True, False])
@pytest.mark.parametrize(
    ("num_samples", "parts", "largest"),
    [
        (1, 2, 10**7), (33, 2, 3 * 10**9), (40, 3, 10**7), (64, 4, 10**7), (200, 4, 3 * 10**9), (512, 4, 10**7),
        (700, 2, 10**7), (1024, 2, 10**7),
    ],
)  # fmt: skip
def test_batches_sorted_as_one(num_samples, parts, largest, by_column, device, random):
    """The unique rows of each batch as if it were alone, and those of their union."""
    tables = Tables.one_each([50, 3, 2000, 1, largest, 40], [2, 0, 3, 1, 5, 4])
    tables = tables._replace(columns=[5, 0, 3, 2, 1, 6])
    ids = [tables.draw(num_samples, random) for _ in range(parts)]
    buffers, counts = tables.unique_coalesced(ids, by_column, device)
    alone = [tables.unique(each, False, device) for each in ids]
    assert counts == [expected for _, expected in alone]
    for part, (expected, _) in enumerate(alone):
        found = buffers.unique(BUFFER, part)
        for name in UniqueRows._fields:
            assert torch.equal(getattr(found, name).cpu(), getattr(expected, name)), (part, name)
    union, _ = tables.unique(torch.cat(ids), False, device)
    rows, num = (each.cpu() for each in buffers.union_rows(BUFFER))
    assert torch.equal(num, union.num)
    assert torch.equal(rows, union.rows)
    assert torch.equal(buffers.union.starts[BUFFER, : rows.numel() + 1].cpu(), union.starts)
    for part, (expected, _) in enumerate(alone):
        position = buffers.union.in_union[BUFFER * parts + part, : expected.num].long().cpu()
        assert torch.equal(rows[position], expected.rows[: expected.num])


@pytest.mark.parametrize("by_column", [True, False])
@pytest.mark.parametrize("bad_parts", [(2,), (0, 3)])
def test_bad_batches_among_others(bad_parts, by_column, device, random):
    tables = Tables.one_each([3, 50, 400], [1, 2, 0])
    ids = [tables.draw(64, random) for _ in range(4)]
    alone = [tables.unique(each, False, device)[0] for each in ids]
    for part in bad_parts:
        ids[part][7, 1], ids[part][12, 2] = 50, -1
    ids[3] = ids[3] - 1000 if bad_parts == (0, 3) else ids[3]  # then none of its ids is good
    buffers, counts = tables.unique_coalesced(ids, by_column, device)
    for part in set(range(4)) - set(bad_parts):
        assert counts[part][1] == 0
        for name in UniqueRows._fields:
            found = getattr(buffers.unique(BUFFER, part), name).cpu()
            assert torch.equal(found, getattr(alone[part], name)), (part, name)
    for part in bad_parts:
        bad = UniqueRows(*(each.cpu() for each in buffers.unique(BUFFER, part)))
        assert counts[part] == [0, 64 * 3 if part == 3 else 64 * 3 - (7 * 3 + 1)]
        assert bad.num.item() == 0
        assert (bad.rows == NO_ROW).all()
        assert (bad.inverse == -1).all()
        assert (bad.starts == 0).all()


BUFFER = 1
SIZES = [50, 3, 2000, 1, 10**7] * 5 + [7]


@pytest.mark.parametrize(
    ("num_samples", "num_features"),
    [*product([1, 3, 64], [1, 3, 26]), *product([1000, 1024, 2048], [1, 3]), (1024, 26), (2048, 26)],
)
def test_columns_sorted_one_by_one(num_samples, num_features, device, random):
    tables = Tables.one_each(SIZES[:num_features])
    tables.check(tables.draw(num_samples, random), device)


@pytest.mark.parametrize("num_samples", [1, 33, 64])
def test_columns_of_equal_and_of_different_ids(num_samples, device, random):
    tables = Tables.one_each([9, 100])
    tables.check(torch.full((num_samples, 2), 8), device)
    tables.check(torch.randperm(100, generator=random)[:num_samples, None] // torch.tensor([100, 1]), device)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_columns_in_another_order_than_their_tables(dtype, device, random):
    tables = Tables.one_each([50, 4, 30, 1000], [2, 0, 3, 1])
    ids = tables.draw(70, random).to(dtype)
    tables.check(ids, device)
    some = tables._replace(columns=[5, 0, 3, 2])
    some.check(some.draw(70, random).to(dtype), device)


def test_rows_and_ids_beyond_32_bits(device, random):
    tables = Tables.one_each([2**40, 3, 2**57 - 1], [2, 1, 0])
    ids = tables.draw(64, random)
    ids[[3, 40, 50], 2] = torch.tensor([2**57 - 2, 2**57 - 3, 2**57 - 2])
    tables.check(ids, device)


@pytest.mark.parametrize("columns", [None, [3, 0, 1]])
@pytest.mark.parametrize("bad", [{(40, 1): -1}, {(7, 2): 400, (7, 1): 50, (60, 0): -(2**60)}, {(0, 0): 2**62}])
def test_nothing_of_a_batch_with_a_bad_id(bad, columns, device, random):
    tables = Tables.one_each([3, 50, 400], [1, 2, 0])._replace(columns=columns)
    ids = tables.draw(64, random)
    for (sample, feature), value in bad.items():
        ids[sample, feature if columns is None else columns[feature]] = value
    ours, counts = tables.unique(ids, True, device)
    assert counts == tables.unique(ids, False, device)[1]
    assert counts == [0, 64 * 3 - min(3 * sample + feature for sample, feature in bad)]
    assert ours.num.item() == 0
    assert (ours.rows == NO_ROW).all()
    assert (ours.inverse == -1).all()
    assert (ours.starts == 0).all()
    assert torch.equal(ours.order.sort().values, torch.arange(64 * 3, dtype=torch.int32))
    assert ours.block_rows.min() >= 0
    assert ours.block_rows.max() < 64 * 3


def test_no_id_is_good(device):
    ours, counts = Tables.one_each([3, 5]).unique(torch.full((40, 2), -1), True, device)
    assert counts == [0, 80]
    assert (ours.inverse == -1).all()


def test_columns_that_cannot_be_sorted_one_by_one(device):
    assert Tables([0, 50, 0], [50, 3, 50]).order(64, device) is None, "two columns look up the same table"
    tables = Tables.one_each([2**52 - 1, 3])
    assert tables.order(2048, device) is not None
    assert tables.order(2049, device) is None, "id and sample do not fit 64 bits"
    assert Tables.one_each([50, 3]).order(kernel.MAX_SAMPLES + 1, device) is None
