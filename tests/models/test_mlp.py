"""Layers of an MLP: the same modules, initial weights and outputs as a plain nn.Sequential."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hotrows.dense.linear import Layer
from hotrows.models import mlp as module
from hotrows.models.mlp import apply_mlp, mlp

SIZES = [13, 32, 7, 1]


def plain(layers: nn.Sequential) -> nn.Sequential:
    """The same modules, called one after the other."""
    return nn.Sequential(*layers)


def run(layers: nn.Module, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of x and of all parameters."""
    x = x.clone().requires_grad_()
    out = layers(x)
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), [x, *layers.parameters()])]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[bool]]:
    """For each call of the fused operation, which of its layers had a ReLU."""
    found: list[list[bool]] = []
    original = module.linear_layers

    def counted(x: Tensor, layers: list[Layer], **options: Any) -> Tensor:
        found.append([layer.relu for layer in layers])
        return original(x, layers, **options)

    monkeypatch.setattr(module, "linear_layers", counted)
    return found


@pytest.mark.parametrize("last_relu", [True, False])
def test_dropout_is_after_each_relu_and_only_in_training(last_relu: bool, calls: list[list[bool]]) -> None:
    torch.manual_seed(0)
    layers = mlp(SIZES, last_relu=last_relu, dropout=0.5)
    after_relu = [type(after) for module, after in itertools.pairwise(layers) if isinstance(module, nn.ReLU)]
    assert after_relu == [nn.Dropout] * (3 if last_relu else 2)
    x = torch.randn(64, 13)
    torch.manual_seed(1)
    trained = layers(x)
    torch.manual_seed(1)
    assert torch.equal(trained, plain(layers)(x))
    assert not torch.equal(trained, layers(x))
    calls.clear()
    layers.eval()
    assert torch.equal(layers(x), plain(layers)(x))
    assert calls == [[True, True, last_relu]]


@pytest.mark.parametrize("dropout", [1, -0.1, True, "0.5", float("nan")])
def test_dropout_that_cannot_be(dropout: Any) -> None:
    with pytest.raises(ValueError, match=r"dropout is .*, it must be from 0 to less than 1"):
        mlp(SIZES, dropout=dropout)


@pytest.mark.parametrize("last_relu", [True, False])
def test_modules_are_those_of_a_sequential(last_relu: bool) -> None:
    torch.manual_seed(0)
    layers = mlp(SIZES, last_relu=last_relu)
    torch.manual_seed(0)
    expected: list[nn.Module] = []
    for num_in, num_out in [(13, 32), (32, 7), (7, 1)]:
        expected += [module.linear(num_in, num_out), nn.ReLU()]
    sequential = nn.Sequential(*(expected if last_relu else expected[:-1]))
    assert [type(layer) for layer in layers] == [type(layer) for layer in sequential]
    assert list(layers.state_dict()) == list(sequential.state_dict())
    for (name, ours), theirs in zip(layers.state_dict().items(), sequential.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    sequential.load_state_dict(layers.state_dict())
    layers.load_state_dict(sequential.state_dict())
    assert isinstance(layers, nn.Sequential)
    assert isinstance(layers[:2], nn.Sequential)


@pytest.mark.parametrize("last_relu", [True, False])
@pytest.mark.parametrize("shape", [(13,), (0, 13), (5, 13), (2, 3, 13)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_same_bits_as_plain_on_the_cpu(last_relu: bool, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layers = mlp(SIZES, last_relu=last_relu).to(dtype)
    x = torch.randn(shape, dtype=dtype)
    for ours, theirs in zip(run(layers, x), run(plain(layers), x), strict=True):
        assert torch.equal(ours, theirs)


def test_layers_and_their_relus_are_one_call(calls: list[list[bool]]) -> None:
    mlp(SIZES, last_relu=False)(torch.randn(5, 13))
    assert calls == [[True, True, False]]


def test_hooks_see_every_layer(calls: list[list[bool]]) -> None:
    layers = mlp(SIZES)
    seen: list[Tensor] = []
    expected = plain(layers)[:3](x := torch.randn(5, 13))
    layers[2].register_forward_hook(lambda _layer, _inputs, out: seen.append(out))
    layers[5].register_full_backward_hook(lambda _layer, grad, _grad_out: seen.append(grad[0]))
    layers(x).sum().backward()
    assert torch.equal(seen[0], expected)
    assert len(seen) == 2
    assert calls == [[True], [False]]


def test_global_hooks_see_every_layer() -> None:
    layers = mlp(SIZES)
    seen: list[nn.Module] = []
    handle = nn.modules.module.register_module_forward_hook(lambda layer, _inputs, _out: seen.append(layer))
    try:
        layers(torch.randn(5, 13))
    finally:
        handle.remove()
    assert seen == [*layers, layers]


def test_other_layers_are_called_one_by_one(calls: list[list[bool]]) -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    layers = mlp([4, 4, 4, 4])
    layers[0] = Doubled(4, 4)
    layers[2] = nn.Linear(4, 4, bias=False)
    layers[5] = nn.Tanh()
    x = torch.randn(5, 4)
    assert torch.equal(layers(x), plain(layers)(x))
    assert calls == [[False]]


def test_a_replaced_forward_is_called() -> None:
    layers = mlp([4, 4])
    layers[0].forward = lambda x: x + 1
    assert torch.equal(layers(torch.zeros(2, 4)), torch.ones(2, 4))


@pytest.mark.parametrize("last_relu", [True, False])
def test_onto_is_added_at_the_end(last_relu: bool, calls: list[list[bool]]) -> None:
    layers = mlp(SIZES, last_relu=last_relu)
    x, onto = torch.randn(5, 13), torch.randn(5, 1)
    expected = plain(layers)(x) + onto
    assert torch.equal(layers(x, padded=True, onto=onto), expected)
    assert torch.equal(apply_mlp(layers, x, onto), expected)
    assert torch.equal(apply_mlp(layers, x), plain(layers)(x))
    layers[-1].register_forward_hook(lambda *_: None)
    assert torch.equal(layers(x, onto=onto), expected)


def test_hooks_of_the_mlp_see_its_output_without_onto() -> None:
    layers = mlp(SIZES, last_relu=False)
    x, onto = torch.randn(5, 13), torch.randn(5, 1)
    seen: list[Any] = []
    layers.register_forward_hook(lambda _layers, inputs, out: seen.append((inputs, out)))
    assert torch.equal(apply_mlp(layers, x, onto), plain(layers)(x) + onto)
    ((inputs, out),) = seen
    assert len(inputs) == 1
    assert torch.equal(out, plain(layers)(x))
    assert torch.equal(apply_mlp(plain(layers), x, onto), out + onto)


def test_frozen_layers() -> None:
    layers = mlp(SIZES)
    layers[0].requires_grad_(False)
    layers[2].bias.requires_grad_(False)
    layers(torch.randn(5, 13)).sum().backward()
    assert [p.grad is not None for p in layers.parameters()] == [False, False, True, False, True, True]


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [[13, 512, 256, 128], [479, 1024, 512, 1], [2509, 256, 100, 1]])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
def test_as_exact_as_plain_on_the_gpu(sizes: list[int], autocast: torch.dtype | None) -> None:
    torch.manual_seed(0)
    layers = mlp(sizes, last_relu=sizes[-1] != 1).cuda()
    x = torch.randn(1000, sizes[0]).cuda()
    truth = run(copy.deepcopy(layers).double(), x.double())
    with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        found, theirs = run(layers, x), run(plain(layers), x)
    for ours, peer, exact in zip(found, theirs, truth, strict=True):
        assert ours.dtype == peer.dtype
        assert ours.shape == peer.shape
        scale = exact.norm()
        assert (ours - exact).norm() / scale < 2 * (peer - exact).norm() / scale + 1e-6


@pytest.mark.gpu
def test_frozen_layers_on_the_gpu() -> None:
    layers = mlp(SIZES).cuda()
    layers[0].requires_grad_(False)
    layers[2].bias.requires_grad_(False)
    layers(torch.randn(5, 13).cuda()).sum().backward()
    assert [p.grad is not None for p in layers.parameters()] == [False, False, True, False, True, True]


@pytest.mark.gpu
def test_bits_repeat_on_the_gpu() -> None:
    layers, x = mlp([479, 1024, 256, 1], last_relu=False).cuda(), torch.randn(4096, 479).cuda()
    first = run(layers, x)
    for _ in range(3):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(run(layers, x), first, strict=True))


@pytest.mark.gpu
def test_trains_in_a_cuda_graph() -> None:
    layers, x = mlp([13, 64, 1], last_relu=False).cuda(), torch.randn(256, 13).cuda()
    expected = run(layers, x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(layers, x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(layers, x)
    graph.replay()
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
