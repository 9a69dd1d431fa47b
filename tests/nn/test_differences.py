"""What differs from `nn.EmbeddingBag`: one test for every row of the README's table, and what is the same beside it."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hotrows

README = Path(__file__).parents[2] / "README.md"
IDS = torch.tensor([[1, 2], [3, 4]])
TESTED: dict[str, Callable[..., None]] = {}


def row(first_cell: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Names the row of the table that a test is for."""

    def note(test: Callable[..., None]) -> Callable[..., None]:
        assert first_cell not in TESTED
        TESTED[first_cell] = test
        return test

    return note


def make_bag(**arguments: object) -> hotrows.EmbeddingBag:
    arguments = {"optimizer": hotrows.optim.SGD(lr=0.5), **arguments}
    return hotrows.EmbeddingBag(30, 4, mode="sum", cache=8, device="cpu", **arguments)


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(make_bag(), nn.Linear(4, 1))


def plain(bag: hotrows.EmbeddingBag) -> tuple[nn.EmbeddingBag, torch.optim.SGD]:
    """The same rows in PyTorch, and the same optimizer."""
    twin = bag.to_embedding_bag()
    return twin, torch.optim.SGD(twin.parameters(), lr=0.5)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_every_row_of_the_table_has_a_test() -> None:
    section = README.read_text(encoding="utf-8").split("## What differs from nn.EmbeddingBag\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (.+?) \|", section, flags=re.MULTILINE)
    assert cells[:2] == ["in PyTorch", "---"]
    assert cells[2:] == list(TESTED)
    assert all(test.__name__ in globals() for test in TESTED.values())


@row("`optimizer.step()` updates rows")
def test_backward_updates_rows() -> None:
    model = make_model()
    dense = torch.optim.SGD(model.parameters(), lr=0.5)
    before = model[0].weight()
    model(IDS).sum().backward()
    after = model[0].weight()
    assert not torch.equal(before, after)
    dense.step()
    dense.zero_grad()
    assert torch.equal(model[0].weight(), after)


@row("initial values")
def test_initial_values_are_small_unless_asked() -> None:
    assert make_bag().weight().abs().max() <= 30**-0.5
    assert hotrows.EmbeddingBag(1000, 16, init="normal", device="cpu").weight().std() == pytest.approx(1, rel=0.05)


@row("rows without an optimizer")
def test_rows_without_an_optimizer_are_only_read() -> None:
    bag = make_bag(optimizer=None)
    with pytest.raises(ValueError, match="these rows have no optimizer"):
        bag(IDS)
    with torch.no_grad():
        expected = bag(IDS)
    assert torch.equal(make_bag(optimizer=None).eval()(IDS), expected)
    assert torch.equal(make_bag(optimizer=None).requires_grad_(False)(IDS), expected)


@row("`torch.optim.Adam` with dense gradients")
def test_adam_updates_rows_of_the_batch() -> None:
    bag = make_bag(optimizer=hotrows.optim.Adam(lr=0.1))
    twin = nn.EmbeddingBag.from_pretrained(bag.weight(), mode="sum", freeze=False, sparse=True)
    dense = torch.optim.SparseAdam(twin.parameters(), lr=0.1)
    for ids in (IDS, IDS + 10):
        bag(ids).square().sum().backward()
        dense.zero_grad()
        twin(ids).square().sum().backward()
        dense.step()
    torch.testing.assert_close(bag.weight(), twin.weight.detach())


@row("weight decay")
def test_sgd_decays_rows_of_the_batch() -> None:
    bag = make_bag(optimizer=hotrows.optim.SGD(lr=0.5, weight_decay=0.1))
    before = bag.weight()
    (bag(IDS).sum() * 0).backward()
    expected = before.clone()
    expected[1:5] *= 1 - 0.5 * 0.1
    torch.testing.assert_close(bag.weight(), expected)
    for optimizer in (hotrows.optim.Adagrad, hotrows.optim.RowWiseAdagrad, hotrows.optim.Adam):
        with pytest.raises(TypeError, match="weight_decay"):
            optimizer(lr=0.1, weight_decay=0.1)


@row("several `backward()` per step")
def test_each_backward_is_a_step() -> None:
    ours, ours_in_one = make_bag(), make_bag()
    (twin, dense), (twin_in_one, dense_in_one) = plain(ours), plain(ours)
    for _ in range(2):
        ours(IDS).square().sum().backward()
        twin(IDS).square().sum().backward()
        dense.step()
        dense.zero_grad()
        twin_in_one(IDS).square().sum().backward()
    dense_in_one.step()
    with ours_in_one.accumulate():
        for _ in range(2):
            ours_in_one(IDS).square().sum().backward()
    torch.testing.assert_close(ours.weight(), twin.weight.detach())
    torch.testing.assert_close(ours_in_one.weight(), twin_in_one.weight.detach())
    assert not torch.allclose(ours.weight(), ours_in_one.weight())


@row("`backward()` in `eval()`")
def test_backward_in_eval_mode_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    model = make_model().eval()
    before = model[0].weight()
    assert model[0](IDS).requires_grad, "as in PyTorch"
    assert not warnings_in(caplog), "reading in eval mode is what it is for"
    for _ in range(2):
        model(IDS).sum().backward()
    assert model[1].weight.grad is not None
    assert torch.equal(model[0].weight(), before)
    (message,) = warnings_in(caplog)
    assert "in eval mode, and has updated no rows: call train() on the bags" in message
    model[0].train()
    model(IDS).sum().backward()
    assert not torch.equal(model[0].weight(), before)


def test_eval_mode_without_private_calls() -> None:
    """Autograd's hooks then end a backward pass, also one that has updated no rows."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, "HOTROWS_SAFE": "1"}, capture_output=True)
    assert (run.returncode, run.stderr.count(b"in eval mode")) == (0, 1), run.stderr.decode()


PROGRAM = """
import torch, hotrows
bag = hotrows.EmbeddingBag(30, 4, cache=8, optimizer=hotrows.optim.SGD(lr=0.5), device="cpu")
ids, before = torch.tensor([[1, 2]]), bag.weight()
read = bag.eval()(ids)
read.sum().backward()
assert torch.equal(bag.weight(), before)
(bag.eval()(ids) + bag.train()(ids)).sum().backward()
torch.testing.assert_close(before[1:3] - bag.weight()[1:3], torch.full((2, 4), 0.25))
"""


@row("`clip_grad_norm_(model.parameters())`")
def test_clipping_leaves_rows_alone() -> None:
    model = make_model()
    model(IDS).sum().backward()
    rows = model[0].weight()
    dense = torch.nn.utils.get_total_norm([param.grad for param in model[1].parameters()])
    assert torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1) == dense
    assert torch.equal(model[0].weight(), rows)


@row("`GradScaler`")
def test_a_scaler_scales_the_update() -> None:
    model, scaled = make_model(), make_model()
    before = model[0].weight()
    model(IDS).sum().backward()
    torch.amp.GradScaler("cpu", init_scale=8.0).scale(scaled(IDS).sum()).backward()
    torch.testing.assert_close(scaled[0].weight() - before, 8 * (model[0].weight() - before))


@row("`swa_utils.AveragedModel`")
@pytest.mark.parametrize("averaging", [None, torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)])
@pytest.mark.parametrize("num_updates", [1, 3])
def test_an_averaged_model_warns(
    num_updates: int, averaging: Callable[..., None] | None, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=averaging)
    before = averaged.module[0].weight()
    averaged(IDS)
    assert not warnings_in(caplog)
    for _ in range(num_updates):
        model(IDS).sum().backward()
        averaged.update_parameters(model)
    assert torch.equal(averaged.module[0].weight(), before)
    for _ in range(2):
        averaged.eval()(IDS)
        model(IDS)
    (message,) = warnings_in(caplog)
    assert "AveragedModel" in message
    averaged.module[0].load_weight(model[0].weight())
    assert torch.equal(averaged.module[0](IDS), model[0](IDS))


@row("`bag.weight`")
def test_weight_is_a_method() -> None:
    bag = make_bag()
    copy = bag.weight()
    copy.zero_()
    assert bag.weight().any()
    with pytest.raises(KeyError, match="weight"):
        bag.weight = nn.Parameter(torch.zeros(30, 4))
    with pytest.raises(AttributeError, match="data"):
        bag.weight.data = torch.zeros(30, 4)
    with pytest.raises(AttributeError, match="shape"):
        print(bag.weight.shape)


@row("`nn.init.*_(bag.weight)`")
def test_initial_values_are_not_set_in_place(caplog: pytest.LogCaptureFixture) -> None:
    bag = make_bag()
    before = bag.weight()
    for set_values in (nn.init.normal_, nn.init.uniform_, nn.init.zeros_, nn.init.xavier_uniform_):
        with pytest.raises(AttributeError):
            set_values(bag.weight)
    for parameter in bag.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(bag(IDS), before[IDS].sum(1))
    bag(IDS)
    (message,) = warnings_in(caplog)
    assert "nn.init" in message
    assert "load_weight()" in message
    assert not make_bag(init=lambda ids, dim: torch.zeros(len(ids), dim)).weight().any()


@row("`bag.parameters()`")
def test_there_is_one_parameter_without_elements() -> None:
    bag = make_bag()
    ((name, parameter),) = bag.named_parameters()
    assert (name, parameter.numel()) == ("rows", 0)
    bag(IDS).sum().backward()
    assert parameter.grad is None
    assert list(bag.state_dict()) == ["weight"]


@row("`isinstance(bag, nn.EmbeddingBag)`")
def test_it_is_another_class() -> None:
    found: list[nn.Module] = []
    make_model().apply(lambda module: found.append(module) if isinstance(module, nn.EmbeddingBag) else None)
    assert not found


@row("`.half()`, or `.to()` another device")
def test_it_cannot_be_converted() -> None:
    with pytest.raises(ValueError, match=r"torch\.autocast"):
        make_model().half()
    with pytest.raises(ValueError, match="device='meta'"):
        make_model().to("meta")


@row("gradients of gradients")
def test_gradients_of_gradients_raise() -> None:
    weights = torch.ones(2, 2, requires_grad=True)
    loss = make_bag()(IDS, per_sample_weights=weights).square().sum()
    (gradient,) = torch.autograd.grad(loss, weights, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("freezes", ["the bags", "the model"])
@pytest.mark.parametrize("looks_ahead", [False, True])
def test_requires_grad_freezes_rows_as_in_pytorch(freezes: str, looks_ahead: bool) -> None:
    model = make_model()
    bag = model[0]

    def train() -> None:
        batches = [IDS, IDS + 7, IDS]
        for ids in hotrows.lookahead(batches, bag, ids=lambda ids: ids) if looks_ahead else batches:
            found: Tensor = model(ids)
            if found.requires_grad:
                found.sum().backward()

    before = bag.weight()
    (bag if freezes == "the bags" else model).requires_grad_(False)
    assert not bag(IDS).requires_grad
    assert bag(IDS, per_sample_weights=torch.ones(2, 2, requires_grad=True)).requires_grad
    train()
    assert torch.equal(bag.weight(), before)
    (bag if freezes == "the bags" else model).requires_grad_(True)
    train()
    assert not torch.equal(bag.weight(), before)
