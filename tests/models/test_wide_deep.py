"""Wide & Deep: the terms that it sums, and hooks on its layers."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hotrows.models import WideDeep

NUM_FEATURES, DIM = 3, 4


def made(num_dense: int = 2, num_samples: int = 6) -> tuple[WideDeep, Tensor, Tensor]:
    torch.manual_seed(0)
    model = WideDeep(num_dense, NUM_FEATURES, DIM, hidden=(5, 8))
    return model, torch.randn(num_samples, num_dense), torch.randn(num_samples, NUM_FEATURES, DIM + 1)


def plain(model: WideDeep, dense: Tensor, embedded: Tensor) -> Tensor:
    """The formula of the paper, term by term."""
    deep = nn.Sequential(*model.deep)(torch.cat([dense, embedded[..., :-1].flatten(1)], 1)).squeeze(1)
    logits: Tensor = deep + embedded[..., -1].sum(1)
    return logits if model.wide is None else logits + dense @ model.wide.weight[0] + model.wide.bias


def run(model: WideDeep, forward: Any, dense: Tensor, embedded: Tensor) -> list[Tensor]:
    """The logits, and the gradients of embedded and of all parameters."""
    embedded = embedded.detach().clone().requires_grad_()
    logits = forward(dense, embedded)
    inputs = [embedded, *model.parameters()]
    return [logits.detach(), *torch.autograd.grad(logits.float().square().sum(), inputs)]


@pytest.mark.parametrize("num_dense", [2, 0])
def test_adds_three_terms(num_dense: int) -> None:
    model, dense, embedded = made(num_dense)
    found = run(model, model, dense, embedded)
    expected = run(model, lambda *given: plain(model, *given), dense, embedded)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_wide_weight_of_an_id_is_the_last_element_of_its_row() -> None:
    model, dense, embedded = made()
    more = embedded.clone()
    more[:, 1, -1] += 2.0
    assert torch.allclose(model(dense, more) - model(dense, embedded), torch.full((6,), 2.0), atol=1e-5)


def test_names_in_the_state_dict() -> None:
    model, *_ = made()
    layers = [f"deep.{index}.{name}" for index in (0, 2, 4) for name in ("weight", "bias")]
    assert list(model.state_dict()) == ["wide.weight", "wide.bias", *layers]


def test_hooks_see_the_wide_layer_and_the_deep_ones() -> None:
    model, dense, embedded = made()
    expected = model(dense, embedded)
    seen: dict[str, Any] = {}
    assert model.wide is not None
    model.wide.register_forward_hook(lambda _layer, inputs, out: seen.update(wide=(inputs, out)))
    model.deep.register_forward_hook(lambda _layer, inputs, out: seen.update(deep=(inputs, out)))
    model.deep[0].register_full_backward_hook(lambda _layer, grad, _out: seen.update(grad=grad[0]))
    logits = model(dense, embedded.requires_grad_())
    torch.testing.assert_close(logits, expected)
    logits.sum().backward()
    assert torch.equal(seen["wide"][0][0], dense)
    torch.testing.assert_close(seen["wide"][1], dense @ model.wide.weight.t() + model.wide.bias)
    assert seen["deep"][0][0].shape == seen["grad"].shape == (6, 2 + NUM_FEATURES * DIM)
    assert seen["deep"][1].shape == (6, 1)


def test_another_kind_of_wide_layer() -> None:
    model, dense, embedded = made()
    before = model(dense, embedded)
    assert model.wide is not None
    wide = model.wide(dense).squeeze(1)
    model.wide = nn.Sequential(model.wide, nn.ReLU())  # type: ignore[assignment]
    torch.testing.assert_close(model(dense, embedded), before - wide + wide.relu())


def test_a_frozen_wide_layer() -> None:
    model, dense, embedded = made()
    assert model.wide is not None
    model.wide.requires_grad_(False)
    model(dense, embedded.requires_grad_()).sum().backward()
    assert model.wide.weight.grad is None
    assert embedded.grad is not None


@pytest.mark.gpu
@pytest.mark.parametrize("num_dense", [13, 0])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_as_exact_as_plain_on_the_gpu(num_dense: int, autocast: torch.dtype | None) -> None:
    torch.manual_seed(0)
    model = WideDeep(num_dense, 26, 96).cuda()
    dense, embedded = torch.randn(1000, num_dense).cuda(), torch.randn(1000, 26, 97).cuda()
    exact = copy.deepcopy(model).double()
    truth = run(exact, exact, dense.double(), embedded.double())
    with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        found = run(model, model, dense, embedded)
        theirs = run(model, lambda *given: plain(model, *given), dense, embedded)
    for ours, peer, right in zip(found, theirs, truth, strict=True):
        assert ours.dtype == peer.dtype
        scale = right.norm()
        assert (ours - right).norm() / scale < 2 * (peer - right).norm() / scale + 1e-6


@pytest.mark.gpu
def test_bits_repeat_on_the_gpu() -> None:
    model = WideDeep(13, 26, 96).cuda()
    given = torch.randn(4096, 13).cuda(), torch.randn(4096, 26, 97).cuda()
    first = run(model, model, *given)
    for _ in range(3):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(run(model, model, *given), first, strict=True))
