"""Several batches planned as one: fewer plans, the same result, with every policy and every index."""

from collections import Counter

import pytest
import torch
from torch import Tensor

import hotrows
from hotrows.cache.planning.protocol import Placement
from tests.graphs.fake_cuda import FakeCuda

TABLES = [hotrows.Table("a", 200), hotrows.Table("b", 90)]


def batches(num: int, size: int = 6) -> list[Tensor]:
    random = torch.Generator().manual_seed(num)
    columns = [(torch.rand(num, size, generator=random).pow(3) * table.num_rows).long() for table in TABLES]
    return list(torch.stack(columns, 2))


def train(data: list[Tensor], coalesce: int | None, cache: int | str, **arguments: object) -> tuple[Counter[int], dict]:
    """How many plans were made of how many batches, and the rows after training."""
    bags = hotrows.EmbeddingBagCollection(
        TABLES, 4, cache=cache, optimizer=hotrows.optim.Adagrad(lr=0.1), **arguments
    )  # fmt: skip
    scheduler, planned = bags.schedulers[0], Counter[int]()
    scheduler.coalesce = coalesce
    planner = scheduler.cache.planner
    plan = planner.plan

    def counted(unique, placement, oldest=None, batch_number=None, scan_all=True, parts=None):
        if placement is Placement.ATOMIC:
            planned[1 if parts is None else len(parts)] += 1
        return plan(unique, placement, oldest, batch_number, scan_all, parts)

    planner.plan = counted
    for ids in hotrows.lookahead(data, bags, depth=3, window=16, ids=lambda ids: ids):
        (bags(ids) - 1.0).square().sum().backward()
    return planned, {table.name: bags.weight(table.name) for table in TABLES}


@pytest.mark.parametrize("policy", sorted(hotrows.POLICIES))
@pytest.mark.parametrize("index", sorted(hotrows.INDEXES))
def test_batches_are_planned_together(index: str, policy: str) -> None:
    data = batches(24)
    planned, rows = train(data, 4, 200, index=index, policy=policy)
    assert planned[4] == 6
    assert set(planned) == {4}
    _, expected = train(data, None, "100%")
    assert all(torch.equal(rows[name], expected[name]) for name in expected)


def test_the_last_batches_of_a_loop_are_planned_although_they_are_fewer() -> None:
    data = batches(11)
    planned, rows = train(data, 4, 200)
    assert planned == {4: 2, 3: 1}
    _, expected = train(data, None, "100%")
    assert all(torch.equal(rows[name], expected[name]) for name in expected)


def test_batches_are_planned_one_by_one_if_they_do_not_fit_together() -> None:
    data = batches(24, size=20)
    planned, rows = train(data, 4, 60)
    assert 1 <= planned[4] <= 4, "those that the window had announced together are tried, later ones are not"
    assert planned[1] >= 20
    _, expected = train(data, None, "100%")
    assert all(torch.equal(rows[name], expected[name]) for name in expected)


@pytest.mark.parametrize("num_trained", [1, 4, 7])
def test_batches_outside_the_graph_are_not_planned_with_those_behind_one_in_it(
    num_trained: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty batch has no planning graph. Its ticket was released twice, because it was planned out of order."""
    FakeCuda(monkeypatch)
    mix_empty_batches_and_others(num_trained, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("num_trained", [1, 4, 7])
def test_batches_outside_the_graph_on_a_gpu(num_trained: int) -> None:
    mix_empty_batches_and_others(num_trained, "cuda")


def mix_empty_batches_and_others(num_trained: int, device: str) -> None:
    data = [ids if number in (3, 6) else ids[:0] for number, ids in enumerate(batches(7))]
    rows = []
    for cache in (40, "100%"):
        bags = hotrows.EmbeddingBagCollection(
            TABLES, 4, cache=cache, optimizer=hotrows.optim.Adagrad(lr=0.1), index="hash", device=device
        )
        bags.schedulers[0].coalesce = 4
        loop = hotrows.lookahead([ids.to(device) for ids in data], bags, depth=7, window=32, ids=lambda ids: ids)
        for _, ids in zip(range(num_trained), loop, strict=False):
            (bags(ids) - 1.0).square().sum().backward()
        loop.close()
        rows.append({table.name: bags.weight(table.name) for table in TABLES})
    assert all(torch.equal(rows[0][name], rows[1][name]) for name in rows[0])
