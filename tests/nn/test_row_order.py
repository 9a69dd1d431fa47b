"""Rows of the store in an order of their own: nothing that a user sees depends on it."""

import copy
import pickle

import pytest
import torch
from torch import Tensor

import hotrows
from hotrows.cache.policies.frequency import Frequency
from hotrows.cache.policies.lookahead import Lookahead
from hotrows.loop.ticket import BatchTicket, CheckedRows

TABLES = [hotrows.Table("a", 50), hotrows.Table("b", 80, features=("b1", "b2")), hotrows.Table("c", 30, dim=8)]
ROWS = (50, 80, 80, 30)


def counts(seed: int = 0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {table.name: torch.randint(0, 20, (table.num_rows,), generator=random) for table in TABLES}


def make(ordered: bool, **arguments: object) -> hotrows.EmbeddingBagCollection:
    settings = {"cache": 40, "optimizer": hotrows.optim.Adam(lr=0.1), "seed": 3, **arguments}
    return hotrows.EmbeddingBagCollection(
        TABLES, 4, row_order=hotrows.RowOrder(counts()) if ordered else None, **settings
    )


def batches(num: int = 8, size: int = 200) -> list[Tensor]:
    random = torch.Generator().manual_seed(7)
    return [
        torch.stack([(torch.rand(size, generator=random).pow(4) * rows).long() for rows in ROWS], 1) for _ in range(num)
    ]


def train(bags: hotrows.EmbeddingBagCollection, data: list[Tensor]) -> None:
    for number, ids in enumerate(hotrows.lookahead(data, bags, depth=1, window=4, ids=lambda ids: ids)):
        if number % 3 == 2:
            with bags.accumulate():
                for part in ids.chunk(4):
                    loss(bags, part).backward()
        else:
            loss(bags, ids).backward()


def loss(bags: hotrows.EmbeddingBagCollection, ids: Tensor) -> Tensor:
    return torch.stack([(part.sin() - 0.3).square().sum() for part in bags(ids)]).sum()


def all_values(bags: hotrows.EmbeddingBagCollection) -> dict[str, Tensor]:
    found = {name: bags.weight(name) for name in ("a", "b", "c")}
    for name in list(found):
        found |= {f"{name}.{part}": values.clone() for part, values in bags.row_state(name).items()}
    return found


def assert_same(one: hotrows.EmbeddingBagCollection, other: hotrows.EmbeddingBagCollection) -> None:
    found, expected = all_values(one), all_values(other)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def made(bags: hotrows.EmbeddingBagCollection, rows: Tensor) -> BatchTicket:
    ticket = bags.schedulers[0].announcements.announce_rows(lambda: CheckedRows(rows))
    ticket.announced.synchronize()
    return ticket


@pytest.mark.parametrize("policy", ["lookahead", "frequency"])
@pytest.mark.parametrize("cache", [150, 40])
def test_training_is_the_same_in_every_bit(cache: int, policy: str, device: torch.device) -> None:
    ours, plain = (make(ordered, cache=cache, policy=policy, device=device) for ordered in (True, False))
    assert_same(ours, plain)
    for bags in (ours, plain):
        train(bags, batches())
    assert_same(ours, plain)


def test_the_store_is_ordered_from_hot_to_cold() -> None:
    bags = make(True)
    both = torch.cat([counts()["a"], counts()["b"]])
    order = torch.argsort(both, descending=True, stable=True)
    weights = torch.cat([bags.weight("a"), bags.weight("b")])
    assert torch.equal(bags.caches[0].store.read_range(0, 130)[:, :4], weights[order])
    assert not torch.equal(weights, weights[order])


def test_gradients_are_added_up_in_the_order_of_tables_and_ids(device: torch.device) -> None:
    """Otherwise the bits of the sums would depend on where the kernel cuts the sorted lookups into blocks."""
    rows = torch.randint(130, (500,), generator=torch.Generator().manual_seed(0)).to(device)
    ours, plain = (made(make(ordered, device=device), rows) for ordered in (True, False))
    for part in ("num", "inverse", "order", "starts", "block_rows"):
        assert torch.equal(getattr(ours.unique, part), getattr(plain.unique, part))
    assert not torch.equal(ours.unique.rows, plain.unique.rows)


def test_the_map_takes_no_device_memory(device: torch.device) -> None:
    numbering = make(True, device=device).caches[0].numbering
    assert numbering is not None
    assert numbering.row_of.device.type == "cpu"
    assert numbering.row_of.element_size() == 4


def test_pretrained_weights_are_those_of_their_table_and_ids(device: torch.device) -> None:
    pretrained = torch.randn(80, 4)
    bags = make(True, device=device)
    train(bags, batches(2))
    bags.load_weight("b", pretrained)
    assert torch.equal(bags.weight("b"), pretrained)
    ids = batches(1)[0]
    with torch.no_grad():
        assert torch.equal(bags(ids)[1].cpu(), pretrained[ids[:, 1]])
    plain = bags.to_embedding_bags()["b"]
    assert torch.equal(plain.weight.detach(), pretrained)


def test_states_and_copies_go_by_table_and_id() -> None:
    bags, plain = make(True), make(False)
    for each in (bags, plain):
        train(each, batches(4))
    assert_same(copy.deepcopy(bags), plain)
    assert_same(pickle.loads(pickle.dumps(bags)), plain)
    other = make(True, seed=9)
    other.load_state_dict(plain.state_dict())
    other.optimizer.load_state_dict(plain.optimizer.state_dict())
    assert_same(other, plain)
    back = make(False, seed=9)
    back.load_state_dict(bags.state_dict())
    back.optimizer.load_state_dict(bags.optimizer.state_dict())
    for each in (back, other, plain):
        train(each, batches(2))
    assert_same(back, plain)
    assert_same(other, plain)


def test_pinned_and_cached_rows_are_counted_by_table() -> None:
    bags = make(True, policy="lru")
    bags.pin("a", torch.tensor([3, 7, 11]))
    assert bags.cached_rows() == {"a": 3, "b": 0, "c": 0}
    train(bags, batches(4))
    slots = bags.caches[0].planner.slots
    pinned = slots.row[:-1][slots.pinned]
    row_of = bags.caches[0].numbering.row_of
    assert sorted(pinned.tolist()) == sorted(row_of[[3, 7, 11]].tolist())
    found = bags.cached_rows()
    assert found["a"] + found["b"] == int((slots.row[:-1] >= 0).sum())


@pytest.mark.parametrize("kind", [Frequency, Lookahead])
def test_counts_of_a_policy_follow_the_row_order(kind: type[Frequency] | type[Lookahead]) -> None:
    """Its counts go by table and id, whatever the order in the store: the same rows are evicted."""
    tables, found = TABLES[:2], []
    given = torch.randperm(130, generator=torch.Generator().manual_seed(1))
    for order in (None, hotrows.RowOrder({"a": counts()["a"], "b": counts()["b"]})):
        bags = hotrows.EmbeddingBagCollection(
            tables, 4, cache=40, optimizer=hotrows.optim.SGD(lr=0.1), policy=kind(given), row_order=order
        )
        for ids in batches(20, 12):
            bags(ids[:, :3]).sum().backward()
        found.append((bags.stats().hits, bags.stats().evictions, bags.cached_rows()))
    assert found[0] == found[1]
    assert found[0][1] > 0


def test_where_the_order_is_the_identity_nothing_is_mapped() -> None:
    falling = {table.name: torch.arange(1000, 1000 - table.num_rows, -1) - 100 * i for i, table in enumerate(TABLES)}
    bags = hotrows.EmbeddingBagCollection(TABLES, 4, row_order=hotrows.RowOrder(falling))
    assert [cache.numbering for cache in bags.caches] == [None, None]
    assert all(cache.numbering is not None for cache in make(True).caches)


def test_counts_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="counts of 49 rows of table 'a', it has 50"):
        hotrows.EmbeddingBagCollection(
            TABLES, 4, row_order=hotrows.RowOrder({**counts(), "a": torch.zeros(49, dtype=torch.int64)})
        )
    with pytest.raises(ValueError, match="counts of none rows of table 'c'"):
        hotrows.EmbeddingBagCollection(
            TABLES, 4, row_order=hotrows.RowOrder({name: counts()[name] for name in ("a", "b")})
        )
    with pytest.raises(ValueError, match=r"counts of table 'a' are torch.float32 \[3\]"):
        hotrows.RowOrder({"a": torch.zeros(3)})
