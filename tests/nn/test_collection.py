"""Many tables at once."""

import copy

import pytest
import torch

import hotrows
from hotrows import Jagged, Table

TABLES = [Table("C1", 20), Table("C2", 7, features=("home", "work")), Table("C3", 50)]


def make(cache: int | str = "100%", **arguments: object) -> hotrows.EmbeddingBagCollection:
    arguments.setdefault("optimizer", hotrows.optim.SGD(lr=0.5))
    arguments.setdefault("tables", TABLES)
    return hotrows.EmbeddingBagCollection(**{"dim": 4, **arguments}, cache=cache)


def test_answers_one_vector_per_sample_and_feature() -> None:
    bags = make()
    assert bags.features == ("C1", "home", "work", "C3")
    ids = torch.tensor([[19, 0, 6, 49], [0, 6, 6, 0]])
    out = bags(ids)
    assert out.shape == (2, 4, 4)
    for column, table in enumerate(("C1", "C2", "C2", "C3")):
        assert torch.equal(out[:, column], bags.weight(table)[ids[:, column]])


def test_features_of_one_table_train_the_same_rows() -> None:
    bags = make(cache=3)
    before = bags.weight("C2")
    bags(torch.tensor([[1, 5, 5, 2]])).sum().backward()
    torch.testing.assert_close(bags.weight("C2")[5], before[5] - 0.5 * 2)


def test_jagged_is_feature_major() -> None:
    bags = make()
    ids = Jagged(
        torch.tensor([1, 2, 3, 0, 6, 6, 5, 49]),
        torch.tensor([[2, 1], [0, 1], [2, 1], [0, 1]]),
        torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
    )
    out = bags(ids)
    assert out.shape == (2, 4, 4)
    c1, c2, c3 = (bags.weight(name) for name in ("C1", "C2", "C3"))
    torch.testing.assert_close(out[0, 0], c1[1] + 2 * c1[2])
    torch.testing.assert_close(out[1, 0], 3 * c1[3])
    assert torch.equal(out[0, 1], torch.zeros(4))
    torch.testing.assert_close(out[1, 1], 4 * c2[0])
    torch.testing.assert_close(out[0, 2], 11 * c2[6])
    torch.testing.assert_close(out[1, 3], 8 * c3[49])


def test_an_empty_batch() -> None:
    assert make()(torch.empty(0, 4, dtype=torch.int64)).shape == (0, 4, 4)
    lengths = torch.zeros(4, 0, dtype=torch.int64)
    assert make()(Jagged(torch.empty(0, dtype=torch.int64), lengths)).shape == (0, 4, 4)


def test_default_dtypes_do_not_leak_in() -> None:
    expected = make().weight("C1")
    for dtype in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            bags = make(mode="mean")
            out = bags(Jagged(torch.tensor([1, 2, 0, 0, 0]), torch.tensor([[2], [1], [1], [1]])))
            out.sum().backward()
            assert out.dtype == torch.float32
            assert torch.equal(make().weight("C1"), expected)
        finally:
            torch.set_default_dtype(torch.float32)


def test_tables_of_different_dims() -> None:
    tables = [Table("a", 10, dim=8), Table("b", 20), Table("c", 5, dim=8)]
    bags = make(tables=tables)
    ids = torch.tensor([[9, 19, 4], [0, 0, 0]])
    a, b, c = bags(ids)
    assert (a.shape, b.shape, c.shape) == ((2, 8), (2, 4), (2, 8))
    assert torch.equal(b, bags.weight("b")[ids[:, 1]])
    jagged = bags(Jagged(ids.T.flatten(), torch.ones(3, 2, dtype=torch.int64)))
    assert all(torch.equal(x, y) for x, y in zip(jagged, (a, b, c), strict=True))
    assert len(bags.caches) == 2


def test_a_cache_in_rows_is_shared_out_between_dims() -> None:
    bags = make(tables=[Table("a", 100, dim=8), Table("b", 300, dim=4)], cache=40)
    assert [cache.num_slots for cache in bags.caches] == [10, 30]


def test_weights_come_and_go() -> None:
    bags = make(cache=5)
    pretrained = torch.randn(50, 4)
    bags(torch.tensor([[1, 1, 1, 7]]))  # an old value of C3 is in the cache
    bags.load_weight("C3", pretrained)
    assert torch.equal(bags.weight("C3"), pretrained)
    assert torch.equal(bags(torch.tensor([[1, 1, 1, 7]]))[0, 3], pretrained[7])
    plain = bags.to_embedding_bags()
    assert list(plain) == ["C1", "C2", "C3"]
    assert torch.equal(plain["C3"].weight, pretrained)
    assert torch.equal(plain["C3"](torch.tensor([[7]])), pretrained[7:8])


def test_first_values_do_not_depend_on_the_other_tables() -> None:
    assert torch.equal(make().weight("C3"), make(tables=[TABLES[2]]).weight("C3"))


def test_state_dict_is_that_of_a_dict_of_embedding_bags() -> None:
    bags = make(cache=5)
    plain = torch.nn.ModuleDict({t.name: torch.nn.EmbeddingBag(t.num_rows, 4) for t in TABLES})
    bags.load_state_dict(plain.state_dict())
    assert torch.equal(bags.weight("C2"), plain["C2"].weight)
    model = torch.nn.Sequential(bags)
    assert list(model.state_dict()) == ["0.C1.weight", "0.C2.weight", "0.C3.weight"]
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})


def test_pinned_rows_stay() -> None:
    bags = make(cache=8, policy="lru")
    hot = torch.tensor([3, 4, 5])
    bags.pin("C3", hot)
    random = torch.Generator().manual_seed(0)
    for _ in range(30):
        bags(torch.randint(0, 7, (2, 4), generator=random)).sum().backward()
        rows = bags.caches[0].planner.slots.row
        assert set((hot + 27).tolist()) <= set(rows.tolist())
    bags.unpin()
    for start in range(0, 50, 5):
        ids = torch.arange(start, start + 5).unsqueeze(1).expand(-1, 4) % torch.tensor([20, 7, 7, 50])
        bags(ids).sum().backward()
    assert not set((hot + 27).tolist()) <= set(bags.caches[0].planner.slots.row.tolist())


def test_pinning_more_than_fits_is_refused() -> None:
    bags = make(cache=8)
    with pytest.raises(ValueError, match="20 rows to pin, but 12 of them find no slot in a cache of 8"):
        bags.pin("C1", torch.arange(20))
    with pytest.raises(ValueError, match="table 'C1' has 0 to 19"):
        bags.pin("C1", torch.tensor([20]))
    assert not bags.caches[0].planner.slots.pinned.any()


def test_cannot_be_moved_or_cast_behind_its_back() -> None:
    bags = make()
    assert bags.to("cpu") is bags
    assert bags.float() is bags
    with pytest.raises(ValueError, match="make the bags with device='meta'"):
        bags.to("meta")
    with pytest.raises(ValueError, match="rows are float32"):
        torch.nn.Sequential(bags).half()


def test_bytes_moved_are_misses_times_record_bytes() -> None:
    bags = make(cache=12, optimizer=hotrows.optim.Adam())
    random = torch.Generator().manual_seed(0)
    for _ in range(20):
        bags(torch.randint(0, 7, (2, 4), generator=random)).sum().backward()
    stats = bags.stats()
    record = 3 * 4 * 4
    assert stats.hits + stats.misses == stats.unique
    assert stats.bytes_in == stats.misses * record
    assert stats.bytes_out == stats.evictions * record
    assert stats["hits"] == stats.hits
    assert stats.as_dict()["hit_rate"] == pytest.approx(stats.hits / stats.unique)
