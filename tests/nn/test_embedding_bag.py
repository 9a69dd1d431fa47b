"""The drop-in: every call of `nn.EmbeddingBag` that makes sense, with its answers."""

import copy
import pickle

import pytest
import torch
from torch import Tensor

import hotrows

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def make(mode: str = "sum", cache: int | str = 7, **arguments: object) -> hotrows.EmbeddingBag:
    arguments.setdefault("optimizer", hotrows.optim.SGD(lr=0.5))
    return hotrows.EmbeddingBag(30, 6, mode=mode, cache=cache, **arguments)


def step_in_torch(
    bag: hotrows.EmbeddingBag, input: Tensor, offsets: Tensor | None, weights: Tensor | None, **arguments: object
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Answer, rows after one step of SGD, and gradient of the weights."""
    plain = torch.nn.EmbeddingBag(30, 6, mode=bag.mode, _weight=bag.weight(), **arguments)
    weights = None if weights is None else weights.detach().clone().requires_grad_()
    out = plain(input, offsets, weights)
    out.square().sum().backward()
    torch.optim.SGD(plain.parameters(), lr=0.5).step()
    return out.detach(), plain.weight.detach(), None if weights is None else weights.grad


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("padding_idx", [None, 3, -1])
def test_bags_given_by_offsets(mode: str, dtype: torch.dtype, padding_idx: int | None, device: str) -> None:
    input = torch.tensor([3, 5, 5, 29, 0, 3, 3, 1, 29], dtype=dtype)
    offsets = torch.tensor([0, 2, 2, 5, 7], dtype=dtype)  # one bag is empty, one is all padding
    bag = make(mode, padding_idx=padding_idx, device=device)
    expected, rows, _ = step_in_torch(bag, input, offsets, None, padding_idx=padding_idx)
    out = bag(input.to(device), offsets.to(device))
    out.square().sum().backward()
    torch.testing.assert_close(out.detach().cpu(), expected)
    torch.testing.assert_close(bag.weight(), rows)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("shape", [(4, 3), (5, 1), (1, 1)])
def test_bags_of_one_length(mode: str, shape: tuple[int, int], device: str) -> None:
    input = torch.randint(0, 30, shape, generator=torch.Generator().manual_seed(1))
    bag = make(mode, device=device)
    expected, rows, _ = step_in_torch(bag, input, None, None)
    out = bag(input)
    out.square().sum().backward()
    torch.testing.assert_close(out.detach().cpu(), expected)
    torch.testing.assert_close(bag.weight(), rows)


@pytest.mark.parametrize("device", DEVICES)
def test_include_last_offset(device: str) -> None:
    input, offsets = torch.tensor([1, 2, 3, 4]), torch.tensor([0, 1, 4])
    bag = make(include_last_offset=True, device=device)
    expected, rows, _ = step_in_torch(bag, input, offsets, None, include_last_offset=True)
    out = bag(input.to(device), offsets.to(device))
    out.square().sum().backward()
    torch.testing.assert_close(out.detach().cpu(), expected)
    torch.testing.assert_close(bag.weight(), rows)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cache", ["100%", 2])
def test_per_sample_weights_and_their_gradient(cache: int | str, device: str) -> None:
    input, offsets = torch.tensor([1, 2, 3, 1, 2]), torch.tensor([0, 2])
    weights = torch.tensor([0.5, -1.0, 2.0, 3.0, 0.25])
    bag = make(cache=cache, device=device)
    expected, rows, gradient = step_in_torch(bag, input, offsets, weights)
    mine = weights.to(device).requires_grad_()
    out = bag(input, offsets, mine)
    out.square().sum().backward()
    torch.testing.assert_close(out.detach().cpu(), expected)
    torch.testing.assert_close(bag.weight(), rows)
    assert mine.grad is not None
    torch.testing.assert_close(mine.grad.cpu(), gradient)


def test_bags_without_ids_are_zero() -> None:
    assert torch.equal(make()(torch.empty(3, 0, dtype=torch.int64)), torch.zeros(3, 6))
    assert make()(torch.empty(0, 1, dtype=torch.int64)).shape == (0, 6)
    empty = torch.empty(0, dtype=torch.int64)
    assert make()(empty, empty).shape == (0, 6)


def test_frozen_rows_are_read() -> None:
    table = torch.randn(30, 6)
    bag = hotrows.EmbeddingBag.from_pretrained(table, mode="sum", cache=4)
    assert torch.equal(bag(torch.arange(30).unsqueeze(1)), table)
    model = torch.nn.Sequential(bag).train()  # frozen rows stay frozen
    assert not model(torch.tensor([[1]])).requires_grad
    assert not copy.deepcopy(bag)(torch.tensor([[1]])).requires_grad
    unset = hotrows.EmbeddingBag(30, 6)
    with pytest.raises(ValueError, match="no optimizer"):
        unset(torch.tensor([[1]]))
    with pytest.raises(ValueError, match="freeze=False"):
        hotrows.EmbeddingBag.from_pretrained(table, optimizer=hotrows.optim.SGD(lr=1.0))


def test_padding_row_starts_at_zero_and_stays() -> None:
    bag = make("mean", padding_idx=4)
    bag(torch.tensor([[4, 4, 1]])).sum().backward()
    assert torch.equal(bag.weight()[4], torch.zeros(6))


def test_same_first_values_in_any_cache() -> None:
    assert torch.equal(make(cache=1).weight(), make(cache="100%").weight())
    assert not torch.equal(make(seed=1).weight(), make(seed=2).weight())


def test_state_dict_goes_to_torch_and_back() -> None:
    bag = make()
    bag(torch.tensor([[1], [2]])).sum().backward()
    plain = torch.nn.EmbeddingBag(30, 6, mode="sum")
    plain.load_state_dict(bag.state_dict())
    assert torch.equal(plain.weight, bag.weight())
    other = make(seed=5)
    other(torch.tensor([[1], [2]]))  # so that old values are in the cache
    other.load_state_dict(plain.state_dict())
    assert torch.equal(other.weight(), plain.weight)
    assert torch.equal(other(torch.tensor([[2]])), plain.weight[2:3])


def test_state_dict_complains_as_torch_does() -> None:
    with pytest.raises(RuntimeError, match=r"Missing key.*weight"):
        make().load_state_dict({})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*bias"):
        make().load_state_dict({**make().state_dict(), "bias": torch.zeros(1)})
    with pytest.raises(RuntimeError, match=r"weight is torch.float32 \[3, 6\], expected \[30, 6\]"):
        make().load_state_dict({"weight": torch.zeros(3, 6)})


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda bag: pickle.loads(pickle.dumps(bag))])
def test_copies_have_rows_and_state_of_their_own(copier: object) -> None:
    def step(bag: hotrows.EmbeddingBag) -> None:
        bag(torch.tensor([[1], [2]])).square().sum().backward()

    bag = make(cache=2, optimizer=hotrows.optim.Adam(lr=0.1))
    step(bag)
    twin = copier(torch.nn.Sequential(bag))[0]
    assert twin.optimizer is not bag.optimizer
    assert torch.equal(twin.weight(), bag.weight())
    step(bag)
    assert not torch.equal(twin.weight(), bag.weight())
    step(twin)
    assert torch.equal(twin.weight(), bag.weight())


def test_becomes_a_plain_module() -> None:
    bag = make("mean", include_last_offset=True, padding_idx=2)
    plain = bag.to_embedding_bag()
    input, offsets = torch.tensor([1, 2, 3]), torch.tensor([0, 3])
    torch.testing.assert_close(plain(input, offsets), bag(input, offsets))


def test_printing_says_what_it_is() -> None:
    assert "1 table(s), 30 rows, mode=sum, cache=7 rows on cpu" in repr(make())
