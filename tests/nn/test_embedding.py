"""The drop-in without pooling: every call of `nn.Embedding` that makes sense, with its answers."""

import copy
import pickle

import pytest
import torch
from torch import Tensor

import hotrows

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def make(cache: int | str = 7, **arguments: object) -> hotrows.Embedding:
    arguments.setdefault("optimizer", hotrows.optim.SGD(lr=0.5))
    return hotrows.Embedding(30, 6, cache=cache, **arguments)


def rows_of(module: hotrows.Embedding) -> Tensor:
    return module.state_dict()["weight"].clone()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("padding_idx", [None, 3, -1])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (4, 3), (2, 1, 5), (0,), (3, 0)])
def test_ids_of_any_shape(shape: tuple[int, ...], padding_idx: int | None, dtype: torch.dtype, device: str) -> None:
    random = torch.Generator().manual_seed(1)
    input = torch.randint(0, 30, shape, generator=random).to(dtype)
    table = torch.randn(30, 6, generator=random)
    ours = make(padding_idx=padding_idx, device=device, _weight=table)
    plain = torch.nn.Embedding(30, 6, padding_idx=padding_idx, _weight=table.clone())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for _ in range(2):
        out, expected = ours(input.to(device)), plain(input)
        assert out.shape == expected.shape
        torch.testing.assert_close(out.detach().cpu(), expected.detach())
        optimizer.zero_grad()
        for each in (out, expected):
            each.square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(rows_of(ours), plain.weight.detach())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cache", ["100%", 2, 9])
@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "Adam"])
def test_the_padding_row_is_read_and_takes_no_gradient(optimizer: str, cache: int | str, device: str) -> None:
    """Also where its value is not zero, and where an optimizer would move a row without a gradient."""
    random = torch.Generator().manual_seed(2)
    table = torch.randn(30, 6, generator=random)
    arguments = {"lr": 0.1, **({"weight_decay": 0.1} if optimizer == "SGD" else {})}
    ours = make(cache, padding_idx=4, device=device, optimizer=getattr(hotrows.optim, optimizer)(**arguments))
    ours.load_weight(table)
    for _ in range(4):
        input = torch.randint(0, 8, (3, 5), generator=random)
        input[0, :2] = 4
        outs = [ours(input), ours(input + 1)]  # two forward passes: gradients are gathered by row
        assert torch.equal(outs[0][0, 0].detach().cpu(), table[4])
        sum(out.square().sum() for out in outs).backward()
        ours(input).sum().backward()  # one forward pass: rows are updated in their slots
    assert torch.equal(rows_of(ours)[4], table[4])
    assert not torch.equal(rows_of(ours)[5], table[5])
    assert torch.equal(ours.row_state("weight")["step"], torch.tensor(8.0))


def test_the_padding_row_starts_at_zero() -> None:
    assert torch.equal(rows_of(make(padding_idx=4))[4], torch.zeros(6))
    assert abs(float(rows_of(make("100%")).std()) - 1.0) < 0.2  # as nn.Embedding


def test_frozen_rows_are_read() -> None:
    table = torch.randn(30, 6)
    frozen = hotrows.Embedding.from_pretrained(table, cache=4, padding_idx=2)
    assert torch.equal(frozen(torch.arange(30)), table)
    assert not frozen.train()(torch.tensor([1])).requires_grad
    assert not copy.deepcopy(frozen)(torch.tensor([1])).requires_grad
    with pytest.raises(ValueError, match="freeze=False"):
        hotrows.Embedding.from_pretrained(table, optimizer=hotrows.optim.SGD(lr=1.0))


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_have_rows_and_state_of_their_own(copier: object) -> None:
    def step(module: hotrows.Embedding) -> None:
        module(torch.tensor([1, 2])).square().sum().backward()

    ours = make(2, optimizer=hotrows.optim.Adam(lr=0.1), padding_idx=5)
    step(ours)
    twin = copier(torch.nn.Sequential(ours))[0]
    assert torch.equal(rows_of(twin), rows_of(ours))
    assert twin.padding_idx == 5
    step(ours)
    assert not torch.equal(rows_of(twin), rows_of(ours))
    step(twin)
    assert torch.equal(rows_of(twin), rows_of(ours))


def test_goes_to_torch_and_back() -> None:
    ours = make(padding_idx=3)
    plain = ours.to_embedding()
    assert plain.padding_idx == 3
    assert torch.equal(plain.weight.detach(), rows_of(ours))
    other = make(seed=5)
    other.load_state_dict(plain.state_dict())
    assert torch.equal(rows_of(other), rows_of(ours))


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_looking_ahead_changes_no_bit(depth: int) -> None:
    random = torch.Generator().manual_seed(3)
    data = [torch.randint(0, 30, (4, 3), generator=random) for _ in range(12)]
    results = []
    for ahead in (False, True):
        ours = make(13 if ahead else "100%", optimizer=hotrows.optim.Adam(lr=0.1), padding_idx=0)
        batches = hotrows.lookahead(data, ours, depth=depth, ids=lambda ids: ids) if ahead else data
        for ids in batches:
            (ours(ids) - 1.0).square().mean().backward()
        assert ours.stats().on_the_spot == 0 or not ahead
        results.append(rows_of(ours))
    assert torch.equal(*results)


def test_bad_arguments_are_refused() -> None:
    for wrong, message in (
        ({"max_norm": 1.0}, "max_norm is not supported"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq is not supported"),
        ({"dtype": torch.float16}, "rows are float32"),
        ({"padding_idx": 30}, "padding_idx is 30"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**wrong)
    with pytest.raises(ValueError, match=r"input is torch\.float32"):
        make()(torch.rand(3))
    with pytest.raises(hotrows.BadIdError, match=r"input\[1\] is 30, ids of this table go from 0 to 29"):
        make()(torch.tensor([[2, 30]]))
