"""Bad input: what was given, what is allowed, and nothing changed."""

from typing import Any

import numpy as np
import pytest
import torch

import hotrows
from hotrows import Jagged, Table
from hotrows.loop.ticket import BAD_ELSEWHERE
from hotrows.nn.lookups import BAD_ID, rows_of
from hotrows.ops.rows import NO_ROW

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def make(**arguments: object) -> hotrows.EmbeddingBagCollection:
    defaults: dict[str, object] = {
        "tables": [Table("C1", 20), Table("C2", 7)],
        "dim": 4,
        "optimizer": hotrows.optim.SGD(lr=0.5),
        "cache": 5,
    }
    return hotrows.EmbeddingBagCollection(**{**defaults, **arguments})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1, 2], [3, 7]], r"feature 'C2', sample 1: id 7 is not in table 'C2', whose ids go from 0 to 6"),
        ([[-1, 2]], r"feature 'C1', sample 0: id -1 is not in table 'C1', whose ids go from 0 to 19"),
        ([[2**40, 2]], r"id 1099511627776"),
    ],
)
def test_a_bad_id_is_named_and_changes_nothing(ids: list[list[int]], message: str, device: str) -> None:
    bags = make(device=device)
    good = torch.tensor([[1, 2], [3, 4]])
    bags(good).sum().backward()
    before = {name: bags.weight(name) for name in ("C1", "C2")}

    def step() -> None:
        bags(torch.tensor(ids, device=device)).sum().backward()
        bags.flush()

    with pytest.raises(hotrows.BadIdError, match=message):
        step()
    assert all(torch.equal(bags.weight(name), rows) for name, rows in before.items())
    bags(good).sum().backward()
    assert not torch.equal(bags.weight("C1"), before["C1"])


@pytest.mark.parametrize("device", DEVICES)
def test_a_bad_id_within_accumulate_is_no_step(device: str) -> None:
    """On a GPU the error comes behind the backward pass, and before `accumulate` ends."""
    bags = make(device=device)

    def step() -> None:
        bags(torch.tensor([[1, 7]], device=device)).sum().backward()
        bags.flush()

    with bags.accumulate(), pytest.raises(hotrows.BadIdError, match="id 7"):
        step()
    assert bags.row_state("C1")["step"] == 0


TWO_DIMS = {"tables": [Table("C1", 20, dim=4), Table("C2", 7, dim=8), Table("C3", 9, dim=4)], "dim": None}


def batches_of(ids: list[list[int]], device: str) -> list[Any]:
    """The same ids with one id per bag, and jagged."""
    columns = torch.tensor(ids, device=device)
    return [columns, Jagged(columns.T.flatten(), torch.ones_like(columns.T))]


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1, 2, 3], [3, 7, 3]], "feature 'C2'"),
        ([[1, 2, 3], [3, 6, 9]], "feature 'C3'"),
        ([[-1, 2, 3]], "feature 'C1'"),
    ],
)
def test_a_bad_id_in_one_cache_leaves_no_rows_in_any(ids: list[list[int]], message: str, form: int) -> None:
    bags = make(**TWO_DIMS)
    parts = bags._lookups(batches_of(ids, "cpu")[form])
    made = [part.make() for part in parts]
    assert all((each.rows == NO_ROW).all() for each in made)
    what = [int(each.bad[0]) for each in made if each.bad is not None]
    assert sorted(what) == [BAD_ELSEWHERE, BAD_ID]
    with pytest.raises(hotrows.BadIdError, match=message):
        bags.deduplicate(batches_of(ids, "cpu")[form])


@pytest.mark.gpu
@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("ids", [[[1, 2, 3], [3, 7, 3]], [[1, 2, 3], [3, 6, 9]], [[1, 2, 3], [20, 7, 9]]])
def test_a_bad_id_in_one_cache_changes_no_row_and_counts_no_step_in_any(ids: list[list[int]], form: int) -> None:
    """On a GPU the backward pass of the batch runs before the host knows."""
    bags = make(**TWO_DIMS, optimizer=hotrows.optim.Adam(lr=0.1), device="cuda")
    good = batches_of([[1, 2, 3], [3, 4, 3]], "cuda")[form]
    step_of(bags, good)
    before = {name: (bags.weight(name), bags.row_state(name)) for name in ("C1", "C2", "C3")}
    with pytest.raises(hotrows.BadIdError):
        step_of(bags, batches_of(ids, "cuda")[form])
    for name, (rows, state) in before.items():
        assert torch.equal(bags.weight(name), rows)
        assert all(torch.equal(values, state[key]) for key, values in bags.row_state(name).items())
    step_of(bags, good)  # the error is raised once
    assert bags.row_state("C2")["step"] == 2


def step_of(bags: hotrows.EmbeddingBagCollection, ids: Any) -> None:
    torch.cat([out.flatten() for out in bags(ids)]).sum().backward()
    bags.flush()


def test_the_error_is_what_a_torch_user_catches() -> None:
    for kind in (ValueError, IndexError):
        with pytest.raises(kind):
            make()(torch.tensor([[99, 0]]))


def test_a_bad_id_in_a_jagged_batch() -> None:
    ids = Jagged(torch.tensor([1, 2, 7]), torch.tensor([[1, 1], [0, 1]]))
    with pytest.raises(hotrows.BadIdError, match="feature 'C2', position 2 of values: id 7"):
        make()(ids)


@pytest.mark.parametrize("device", DEVICES)
def test_a_bad_id_in_one_bag(device: str) -> None:
    bag = hotrows.EmbeddingBag(10, 4, optimizer=hotrows.optim.SGD(lr=1.0), device=device)

    def step() -> None:
        bag(torch.tensor([1, 10], device=device), torch.tensor([0], device=device))
        bag.flush()

    with pytest.raises(hotrows.BadIdError, match=r"input\[1\] is 10, ids of this bag go from 0 to 9"):
        step()


@pytest.mark.gpu
def test_bad_structure_on_the_device_is_found_without_waiting() -> None:
    bag = hotrows.EmbeddingBag(10, 4, optimizer=hotrows.optim.SGD(lr=1.0), device="cuda")
    bag(torch.tensor([1, 2, 3], device="cuda"), torch.tensor([0, 2, 1], device="cuda"))
    with pytest.raises(hotrows.BadIdError, match="offsets must"):
        bag.flush()
    bags = make(device="cuda")
    bags(Jagged(torch.tensor([1, 2], device="cuda"), torch.tensor([[5], [1]], device="cuda")))
    with pytest.raises(hotrows.BadIdError, match="lengths must"):
        bags.flush()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.zeros(2, 2), r"ids are torch.float32"),
        (torch.zeros(2, dtype=torch.int64), r"ids are \[2\], give \[B, 2\]"),
        (torch.zeros(2, 3, dtype=torch.int64), r"ids are \[2, 3\], give \[B, 2\]"),
        ([[1, 2]], r"ids are a list, give a hotrows.Jagged or an int64 \[B, F\] tensor: torch.tensor\(ids\)$"),
        (np.array([[1, 2]]), r"ids are a ndarray, give .* an int64 \[B, F\] tensor: torch.from_numpy\(ids\)$"),
        ({1}, r"ids are a set, give a hotrows.Jagged or an int64 \[B, F\] tensor$"),
        (Jagged(torch.tensor([1]), torch.tensor([[1]])), r"lengths are \[1, 1\], give \[2, B\]"),
    ],
)
def test_ids_of_the_wrong_kind(ids: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()(ids)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.tensor([1.0]), torch.tensor([[1]])), "values are torch.float32"),
        ((torch.tensor([1]), torch.tensor([1])), r"lengths are torch.int64 \[1\]"),
        ((torch.tensor([1]), torch.tensor([[2]])), "lengths add up to 2, but there are 1 values"),
        ((torch.tensor([1]), torch.tensor([[2, -1]])), "a length is -1"),
        ((torch.tensor([1]), torch.tensor([[1]]), torch.tensor([1.0, 2.0])), r"weights are torch.float32 \[2\]"),
        ((np.array([1]), torch.tensor([[1]])), r"values are a ndarray, give a tensor: torch.from_numpy\(values\)"),
    ],
)
def test_jagged_of_the_wrong_kind(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Jagged(*arguments)


@pytest.mark.parametrize(
    ("input", "offsets", "weights", "message"),
    [
        ([1, 2, 3], [0, 2, 1], None, r"offsets must ascend, but offsets\[2\] is 1 after 2"),
        ([1, 2, 3], [1, 2], None, r"offsets\[0\] is 1, the first bag must begin at 0"),
        ([1, 2, 3], [0, 4], None, r"offsets\[1\] is 4, beyond the 3 ids given"),
        ([1, 2, 3], None, None, r"needs offsets"),
        ([[1, 2, 3]], [0], None, r"offsets go with a one-dimensional input"),
        ([1, 2, 3], [0], [1.0, 2.0], r"one weight per id"),
    ],
)
def test_one_bag_called_wrongly(
    input: list[int], offsets: list[int] | None, weights: list[float] | None, message: str
) -> None:
    bag = hotrows.EmbeddingBag(10, 4, mode="sum", optimizer=hotrows.optim.SGD(lr=1.0))
    with pytest.raises(ValueError, match=message):
        bag(
            torch.tensor(input),
            None if offsets is None else torch.tensor(offsets),
            None if weights is None else torch.tensor(weights),
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.array([[1]]),), r"input is a ndarray, give ids as an int64 .* tensor: torch.from_numpy\(ids\)$"),
        (([[1]],), r"input is a list, give ids as an int64 \(or int32\) tensor: torch.tensor\(ids\)$"),
        ((torch.tensor([1]), np.array([0])), r"offsets are a ndarray, give a tensor: torch.from_numpy\(offsets\)"),
        ((torch.tensor([1]), [0]), r"offsets are a list, give a tensor: torch.tensor\(offsets\)"),
        ((torch.tensor([[1]]), None, np.ones((1, 1))), r"per_sample_weights are a ndarray, give .*torch.from_numpy"),
    ],
)
def test_one_bag_called_without_tensors(arguments: tuple[Any, ...], message: str) -> None:
    bag = hotrows.EmbeddingBag(10, 4, mode="sum", optimizer=hotrows.optim.SGD(lr=1.0))
    with pytest.raises(ValueError, match=message):
        bag(*arguments)
    if len(arguments) == 1:
        with pytest.raises(ValueError, match=message):
            list(hotrows.lookahead([arguments[0]], bag, ids=lambda ids: ids))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "mru"}, "policy is 'mru': known are frequency, lfu, lookahead, lru, random"),
        ({"index": "tree"}, "index is 'tree': known are auto, direct, hash, set-associative"),
        ({"optimizer": "sgd"}, "optimizer is 'sgd': give one of hotrows.optim.SGD"),
        ({"optimizer": torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)}, "optimizer is 'SGD'"),
        ({"mode": "median"}, "mode is 'median': known are sum, mean, max"),
        ({"store": "tape"}, "store is 'tape'"),
        ({"cache": 0}, "cache is 0"),
        ({"cache": -5}, "cache is -5"),
        ({"cache": "1.5 %x"}, "cache is '1.5 %x'"),
        ({"cache": "0%"}, "cache is '0%'"),
        ({"cache": "120%"}, "at most 100%"),
        ({"cache": "1kB", "dim": 1000}, "one row with its optimizer state takes 4000 bytes"),
        ({"cache": 1.5}, "cache is 1.5"),
        ({"dim": 0}, "dim is 0"),
        ({"dim": None}, "table 'C1' has no dim"),
        ({"tables": []}, "no tables"),
        ({"tables": [Table("a", 1), Table("a", 2)]}, "table names must differ, but 'a'"),
        ({"tables": [Table("a", 1), Table("b", 2, features=("a",))]}, "feature names must differ, but 'a'"),
        ({"tables": [Table("a", 1, init="zeros")]}, "init is 'zeros': give one of uniform, normal"),
        ({"device": "tpu"}, "tpu"),
    ],
)
def test_collections_that_cannot_be(arguments: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        make(**arguments)


def test_tables_that_cannot_be() -> None:
    for arguments, message in [
        (("a", 0), "num_rows is 0"),
        (("", 5), "name ''"),
        (("a.b", 5), "no dot"),
        (("a", 5, -1), "dim is -1"),
        (("a", 5, None, "ab"), "features is 'ab'"),
    ]:
        with pytest.raises(ValueError, match=message):
            Table(*arguments)


def test_more_memory_than_there_is() -> None:
    with pytest.raises(hotrows.OutOfMemoryError, match=r"need 4\d+\.\d TB of host memory, and .* are available"):
        make(tables=[Table("C1", 10**11)], dim=100, cache=10)
    with pytest.raises(MemoryError, match="memory on cpu"):
        make(tables=[Table("C1", 10**11)], dim=100, cache="100%")


def test_what_a_drop_in_cannot_do_it_says() -> None:
    for arguments, message in [
        ({"max_norm": 1.0}, "max_norm is not supported: it changes rows"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq is not supported"),
        ({"dtype": torch.float16}, "rows are float32"),
        ({"padding_idx": 10}, "padding_idx is 10"),
    ]:
        with pytest.raises(ValueError, match=message):
            hotrows.EmbeddingBag(10, 4, **arguments)


def test_a_cache_larger_than_the_table_is_clamped_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="hotrows"):
        bags = make(cache=1000)
    assert bags.caches[0].num_slots == 27
    assert "only 27" in caplog.text


def test_auto_says_which_index_it_chose(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="hotrows"):
        assert make().index == "direct"
    assert "index auto: direct" in caplog.text
    big = hotrows.EmbeddingBag(1_000_000, 1, cache=10)
    assert big.index == "hash"


def test_a_batch_with_a_bad_id_has_no_rows_at_all() -> None:
    """On a GPU the batch is planned and trained before the host knows, so its good ids must not be updated either."""
    first_row, num_rows = torch.zeros(1, dtype=torch.int64), torch.tensor([10])
    checked = rows_of(torch.tensor([3, 10, 4]), first_row, num_rows)
    assert checked.rows.tolist() == [NO_ROW] * 3
    assert checked.bad is not None
    assert checked.bad.tolist() == [BAD_ID, 1, 10]
    assert rows_of(torch.tensor([3, 9, 4]), first_row, num_rows).rows.tolist() == [3, 9, 4]
