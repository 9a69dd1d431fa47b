"""Edges of the public interface: what is saved and loaded, NumPy's numbers, empty batches, extreme ids, pinned rows."""

import gc
import io
from typing import Any

import numpy as np
import pytest
import torch

import hotrows
from hotrows import Table

IDS = torch.arange(20).unsqueeze(1)


def make_bag(**arguments: Any) -> hotrows.EmbeddingBag:
    given: dict[str, Any] = {"num_embeddings": 1000, "embedding_dim": 4, "mode": "sum", "cache": 16}
    given |= {"optimizer": hotrows.optim.Adagrad(lr=0.1)} | arguments
    return hotrows.EmbeddingBag(**given)


def make_bags(**arguments: Any) -> hotrows.EmbeddingBagCollection:
    tables = [Table("a", 20), Table("b", 7, features=("b1", "b2")), Table("c", 9, dim=8)]
    given: dict[str, Any] = {"tables": tables, "dim": 4, "cache": 20, "optimizer": hotrows.optim.SGD(lr=0.5)}
    return hotrows.EmbeddingBagCollection(**{**given, **arguments})


# -- what is saved --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["ram", "device"])
def test_a_saved_state_dict_has_the_weights_and_nothing_else(store: str) -> None:
    bag = make_bag(embedding_dim=64, store=store)  # the records have the sums of Adagrad too
    file = io.BytesIO()
    torch.save(bag.state_dict(), file)
    assert 1000 * 64 * 4 <= len(file.getvalue()) < 1000 * 64 * 4 + 4000


@pytest.mark.parametrize("store", ["ram", "device"])
def test_a_kept_state_dict_does_not_change(store: str) -> None:
    bag = make_bag(store=store)
    assert bag.optimizer is not None
    kept = {**bag.state_dict(), **bag.row_state("weight")}
    before = {name: values.clone() for name, values in kept.items()}
    bag(IDS).sum().backward()
    bag.flush()
    assert not torch.equal(bag.weight(), before["weight"])
    assert all(torch.equal(kept[name], values) for name, values in before.items())


# -- what is loaded -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sum": torch.zeros(1, 4)}, r"sum is torch.float32 \[1, 4\], expected a tensor torch.float32 \[1000, 4\]"),
        ({"sum": torch.zeros(4)}, r"sum is torch.float32 \[4\]"),
        ({"sum": torch.zeros(1000, 1)}, r"sum is torch.float32 \[1000, 1\]"),
        ({"sum": torch.zeros(1000, 4, dtype=torch.int64)}, r"sum is torch.int64 .* expected a tensor torch.float32"),
        ({"sum": torch.zeros(1000, 4, dtype=torch.float64)}, "sum is torch.float64"),
        ({"sum": torch.zeros(1000, 4, dtype=torch.complex64)}, "sum is torch.complex64"),
        ({"sum": np.zeros((1000, 4))}, "sum is a ndarray"),
        ({"sum": torch.zeros(1000, 4).to_sparse()}, r"sum is .* with the layout torch.sparse_coo \(use to_dense\(\)\)"),
        ({"sum": torch.zeros(1000, 4, device="meta")}, "sum is .* on the device 'meta', where tensors have no values"),
        ({"step": torch.tensor(1.0, device="meta")}, "step is .*, it must be a whole number from 0 up"),
        ({"step": torch.tensor([1.0, 2.0])}, "step is .*, it must be a whole number from 0 up"),
        ({"step": torch.tensor(-1.0)}, "step is .*, it must be a whole number"),
        ({"step": torch.tensor(1.5)}, "step is .*, it must be a whole number"),
        ({"step": float("nan")}, "step is nan"),
        ({"step": "first"}, "step is 'first'"),
        ({"exp_avg": torch.zeros(1000, 4)}, r"has \['exp_avg', 'step', 'sum'\], expected \['step', 'sum'\]"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(changes: dict[str, Any], message: str) -> None:
    bag = make_bag()
    bag(IDS).sum().backward()
    before = bag.row_state("weight")
    with pytest.raises(ValueError, match=message):
        bag.load_row_state("weight", {"step": torch.tensor(9.0), "sum": torch.ones(1000, 4), **changes})
    after = bag.row_state("weight")
    assert all(torch.equal(after[name], values) for name, values in before.items())


@pytest.mark.parametrize("step", [3, 3.0, np.int64(3), np.float32(3), torch.tensor(3.0)], ids=repr)
def test_the_step_of_a_state_may_be_any_number(step: Any) -> None:
    bag = make_bag()
    bag.load_row_state("weight", {**bag.row_state("weight"), "step": step})
    assert bag.row_state("weight")["step"] == 3


def test_no_state_at_all() -> None:
    bag = make_bag()
    assert bag.optimizer is not None
    with pytest.raises(ValueError, match="has no dict but a NoneType"):
        bag.load_row_state("weight", None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="it has no dict 'state'"):
        bag.optimizer.load_state_dict({})


@pytest.mark.parametrize(
    ("weight", "found"),
    [
        (np.zeros((1000, 4)), "a ndarray"),
        (None, "a NoneType"),
        (torch.zeros(1000, 4, dtype=torch.int64), r"torch.int64 \[1000, 4\]"),
        (torch.zeros(1000, 4).to_sparse(), r".* with the layout torch.sparse_coo \(use to_dense\(\)\)"),
        (torch.zeros(1000, 4, device="meta"), ".* on the device 'meta', where tensors have no values"),
    ],
)
def test_weights_that_are_no_floats(weight: Any, found: str) -> None:
    with pytest.raises(ValueError, match=rf"weight is {found}, expected \[1000, 4\] as a tensor of floats"):
        make_bag().load_weight(weight)
    with pytest.raises(RuntimeError, match=f"weight is {found}, expected"):  # as PyTorch's modules raise it
        make_bag().load_state_dict({"weight": weight})
    with pytest.raises(ValueError, match=r"embeddings are .*give a tensor|weight is torch.int64"):
        hotrows.EmbeddingBag.from_pretrained(weight)


# -- batches --------------------------------------------------------------------------------------------------------


def test_no_samples_have_no_unique_ids() -> None:
    bags = make_bags()
    nothing = torch.empty(0, 4, dtype=torch.int64)
    found = bags.deduplicate(nothing)
    assert {name: tuple(each.inverse.shape) for name, each in found.items()} == {"a": (0, 1), "b": (0, 2), "c": (0, 1)}
    assert all(each.unique_ids.numel() == 0 for each in found.values())
    for _ in hotrows.lookahead([nothing], bags, ids=lambda ids: ids):
        assert bags.deduplicate()["b"].inverse.shape == (0, 2)


@pytest.mark.parametrize("bad", [2**63 - 1, 2**62, -(2**63), 7])
def test_extreme_ids_are_bad_ids(bad: int) -> None:
    ids = torch.tensor([[0, bad, 0, 0]])
    in_bags = hotrows.Jagged(torch.tensor([0, bad, 0, 0]), torch.ones(4, 1, dtype=torch.int64))
    for call in (
        lambda: make_bags()(ids),
        lambda: make_bags()(in_bags),
        lambda: make_bags().deduplicate(ids),
        lambda: make_bags().pin("b", [bad]),
        lambda: list(hotrows.lookahead([ids], make_bags(), ids=lambda ids: ids)),
    ):
        with pytest.raises(hotrows.BadIdError, match=str(bad)):
            call()


# -- NumPy's numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_whole_numbers_of_numpy(kind: Any) -> None:
    numbers = {"num_embeddings": 100, "embedding_dim": 4, "cache": 16, "seed": 3, "padding_idx": 5}
    ours = make_bag(**{name: kind(number) for name, number in numbers.items()})
    assert torch.equal(ours.weight(), make_bag(**numbers).weight())
    bags = make_bags(tables=[Table("a", kind(20)), Table("b", 7, kind(8))], dim=kind(4), seed=kind(1), cache=kind(5))
    assert [type(table.num_rows) for table in bags.tables] == [int, int]
    assert int(hotrows.simulate([torch.tensor([1])], "lru", kind(5), kind(6)).misses.sum()) == 1


@pytest.mark.parametrize(
    "ids", [[1, 2], (1, 2), range(1, 3), [np.int64(1), np.int32(2)], np.array([1, 2]), np.array([1, 2], np.int32),
            torch.tensor([1, 2], dtype=torch.int32)], ids=repr,
)  # fmt: skip
def test_ids_to_pin(ids: Any) -> None:
    bag = make_bag()
    bag.pin(ids)
    assert bag.caches[0].num_pinned == 2


@pytest.mark.parametrize("ids", [[1.5], ["a"], None, {1, 2}, [True], np.array([1.0]), [2**70]], ids=repr)
def test_ids_that_cannot_be_pinned(ids: Any) -> None:
    with pytest.raises(ValueError, match=r"pin: ids are .*, give .*whole numbers"):
        make_bag().pin(ids)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_embeddings": True}, "num_embeddings is True, it must be a whole number from 1 up"),
        ({"num_embeddings": 10.0}, "num_embeddings is 10.0"),
        ({"embedding_dim": True}, "embedding_dim is True"),
        ({"seed": None}, "seed is None, it must be a whole number"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"padding_idx": 1.5}, "padding_idx is 1.5"),
        ({"cache": np.float64(5)}, "cache is .*5.0.*: give a number of rows"),
        ({"device": 5}, "device is 5: rows can be cached on 'cpu' or 'cuda'"),
    ],
)
def test_numbers_that_are_not_whole(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_bag(**arguments)


# -- pinned rows ----------------------------------------------------------------------------------------------------


def test_rows_in_flight_that_leave_no_room_to_pin_are_named() -> None:
    bag = make_bag()
    batches = [torch.arange(8 * number, 8 * number + 8).unsqueeze(1) for number in range(8)]
    for batch in hotrows.lookahead(batches, bag, depth=2, ids=lambda ids: ids):
        with pytest.raises(ValueError, match=r"8 rows to pin find no room beside the rows of \d batches in flight"):
            bag.pin(range(500, 508))
        bag(batch).sum().backward()
        break
    bag.close_lookahead()
    bag.pin(range(500, 508))
    message = (
        "9 rows to pin, but 1 of them finds no slot in a cache of 16 with 8 other rows pinned already: pin fewer rows"
    )
    with pytest.raises(ValueError, match=message):
        bag.pin(range(600, 609))


@pytest.mark.parametrize(
    ("num", "message"),
    [
        (12, "12 rows to pin find no room beside the rows of 1 batch in flight in a cache of 16, although they would "
             "fit alone: pin them before the lookahead loop begins, or make the cache larger"),
        (17, "17 rows to pin, but 1 of them finds no slot in a cache of 16: pin fewer rows or make the cache larger"),
        (20, "20 rows to pin, but 4 of them find no slot in a cache of 16: pin fewer rows or make the cache larger"),
    ],
)  # fmt: skip
def test_more_rows_to_pin_than_fit_beside_one_batch(num: int, message: str) -> None:
    bag = make_bag()
    for batch in hotrows.lookahead([torch.arange(8).unsqueeze(1)], bag, depth=0, ids=lambda ids: ids):
        bag(batch)
        with pytest.raises(ValueError, match=f"^{message}$"):
            bag.pin(range(500, 500 + num))
        bag.pin(range(8))


def test_rows_that_are_pinned_already_take_no_other_slot() -> None:
    bag = make_bag()
    bag.pin(range(10))
    bag.pin(range(16))
    with pytest.raises(
        ValueError, match="16 rows to pin, but 4 of them find no slot in a cache of 16 with 4 other rows"
    ):
        bag.pin(range(4, 20))


# -- optimizers and the simulator -----------------------------------------------------------------------------------


def test_a_reused_optimizer_forgets_modules_that_are_gone() -> None:
    optimizer = hotrows.optim.SGD(lr=0.1)
    for _ in range(20):
        bag = make_bag(optimizer=optimizer)
        gc.collect()
    assert len(optimizer._attached) <= 2
    assert list(optimizer.state_dict()["state"]) == ["0.weight"]
    assert bag.optimizer is optimizer


def test_numbers_of_optimizers() -> None:
    for make, message in [
        (lambda: hotrows.optim.SGD(lr="fast"), "SGD: lr is 'fast'"),  # type: ignore[arg-type]
        (lambda: hotrows.optim.SGD(lr=float("inf")), "SGD: lr is inf, it must be 0 or more, and finite"),
        (lambda: hotrows.optim.Adam(betas=(0.9,)), "give two numbers"),  # type: ignore[arg-type]
        (lambda: hotrows.optim.make_optimizer("sgd", eps=1.0), "optimizer 'sgd' has no eps: it has lr, weight_decay"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()


def test_the_simulator_has_the_capacity_asked_for() -> None:
    trace = [torch.arange(10), torch.arange(10)]
    message = "capacity is 4, which a cache with the index 'set-associative' would round up to 16: give capacity=16"
    with pytest.raises(ValueError, match=message):
        hotrows.simulate(trace, "lru", capacity=4, index="set-associative")
    assert int(hotrows.simulate(trace, "lru", capacity=16, index="set-associative").misses.sum()) == 10


@pytest.mark.parametrize("index", ["hash", "direct", "set-associative"])
def test_extreme_rows_of_a_trace(index: str) -> None:
    for row in (2**63 - 1, -1):
        with pytest.raises(hotrows.BadIdError, match=f"has row {row}, rows are 0 to"):
            hotrows.simulate([torch.tensor([row])], "lru", 16, index=index)
    if index == "direct":
        with pytest.raises(hotrows.OutOfMemoryError, match="use index='hash'"):
            hotrows.simulate([torch.tensor([2**62])], "lru", 16, index=index)


def test_ids_in_bags_that_are_no_tensors() -> None:
    with pytest.raises(ValueError, match="Jagged: values are a list, give a tensor"):
        hotrows.Jagged([1], [[1]])  # type: ignore[arg-type]
