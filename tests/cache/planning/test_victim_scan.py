"""Ranges of the slots: every slot is scanned, and ranges stay the same, so that rows leave in about ascending order."""

import numpy as np
import pytest
import torch

import hotrows
from hotrows.cache.planning import victim_scan
from hotrows.cache.planning.victim_scan import VictimScan


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victim_scan, "MIN_SLOTS", 10)
    monkeypatch.setattr(victim_scan, "PER_ROW", 4)


def slots_of(scan: victim_scan.ScanRange) -> range:
    return range(scan.start, scan.start + scan.length)


@pytest.mark.parametrize("num_slots", [100, 101, 997])
@pytest.mark.parametrize("num_rows", [1, 3, 7, 12])
def test_every_slot_is_scanned_in_every_round(num_slots, num_rows):
    scan = VictimScan(num_slots)
    first = scan.next_range(num_rows)
    ranges = [first]
    while (following := scan.next_range(num_rows)) != first:
        ranges.append(following)
    assert [slot for each in ranges for slot in slots_of(each)] == list(range(num_slots))
    assert all(each.length >= max(10, 4 * num_rows) for each in ranges)
    assert all(scan.next_range(num_rows) == each for each in ranges[1:])


def test_ranges_stay_while_batches_differ_little():
    scan = VictimScan(1000)
    ranges = [scan.next_range(num_rows) for num_rows in [20, 21, 19, 22, 18, 20, 23, 24, 20, 17, 24, 20] * 3]
    assert len(set(ranges[12:])) == 1000 // (4 * 24), "once so large that the largest batch fits"
    assert scan.next_range(200).length == 1000
    assert scan.next_range(2).length < 40


def test_all_slots_if_two_ranges_would_be_too_small():
    assert VictimScan(100).next_range(13) == (0, 100)
    assert VictimScan(5).next_range(1) == (0, 5)


def test_rows_leave_in_about_ascending_order():
    table, random = hotrows.Table("a", 40_000), torch.Generator().manual_seed(0)
    bags = hotrows.EmbeddingBagCollection([table], 2, cache=1_000, optimizer=hotrows.optim.SGD(lr=0.1), index="hash")
    leaving, move = [], bags.caches[0].transfer.move

    def noted(store, records, moves):
        leaving.append(moves.rows_out[: int(moves.num)].numpy().copy())
        move(store, records, moves)

    bags.caches[0].transfer.move = noted
    batches = [(torch.rand(60, 1, generator=random) ** 3 * 40_000).long() for _ in range(300)]
    for ids in hotrows.lookahead(batches, bags, depth=1, window=4, ids=lambda b: b):
        bags(ids).sum().backward()
    agree = [np.corrcoef(rows, range(len(rows)))[0, 1] for rows in leaving[-30:] if len(rows) > 5]
    assert len(agree) > 20
    assert np.mean(agree) > 0.9
