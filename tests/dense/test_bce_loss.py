"""The loss of click prediction: kernels, forward and gradient, against the reference in double precision."""

import math

import pytest
import torch

from hotrows.dense.bce_loss import bce_loss, kernel, reference

SIZES = [1, 2, 3, 100, 1024, 1025, 8192, 20_000]
LARGE = [65_536, 65_537, 1_000_000]
INF, NAN = float("inf"), float("nan")


def made(num_samples, random, scale=3.0):
    logits = scale * torch.randn(num_samples, generator=random)
    return logits, (torch.rand(num_samples, generator=random) < 0.3).float()


def run(function, logits, label, scale=1.0):
    """The loss, and the gradient of the logits."""
    logits = logits.detach().clone().requires_grad_()
    loss = function(logits, label)
    return loss.detach(), torch.autograd.grad(loss * scale, logits)[0]


def check(device, logits, label):
    loss, grad = run(kernel.bce_loss, logits.to(device), label.to(device), scale=2.5)
    exact, exact_grad = run(reference.bce_loss, logits.double(), label.double(), scale=2.5)
    assert loss.dtype == torch.float32
    assert loss.shape == ()
    assert grad.dtype == logits.dtype
    assert grad.shape == logits.shape
    assert grad.is_contiguous()
    torch.testing.assert_close(loss.cpu().double(), exact, rtol=1e-6, atol=0)
    kind = torch.finfo(logits.dtype)
    atol = max(2e-7 * exact_grad.abs().max().item(), kind.smallest_normal * kind.eps)
    torch.testing.assert_close(grad.cpu().double(), exact_grad, rtol=max(1e-6, kind.eps), atol=atol)


@pytest.mark.parametrize("num_samples", SIZES)
def test_matches_reference(num_samples, device, random):
    check(device, *made(num_samples, random))


@pytest.mark.gpu
@pytest.mark.parametrize("num_samples", LARGE)
def test_matches_reference_at_large_sizes(num_samples, random):
    check("cuda", *made(num_samples, random))


@pytest.mark.parametrize(("tile", "max_tiles"), [(64, 1), (64, 4), (16, 2)])
def test_several_parts(tile, max_tiles, device, random, monkeypatch):
    monkeypatch.setattr(kernel, "TILE", tile)
    monkeypatch.setattr(kernel, "MAX_TILES", max_tiles)
    for num_samples in (tile * max_tiles, tile * max_tiles + 1, 1000):
        check(device, *made(num_samples, random))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_of_half_type(dtype, device, random):
    logits, label = made(1000, random)
    check(device, logits.to(dtype), label)
    check(device, logits.to(dtype), label.to(dtype))


def test_labels_between_zero_and_one(device, random):
    logits, _ = made(1000, random)
    check(device, logits, torch.rand(1000, generator=random))


def test_any_shape_and_stride(device, random):
    logits, label = made(60, random)
    check(device, logits.view(3, 20), label.view(3, 20))
    expected = run(kernel.bce_loss, logits.to(device), label.to(device))
    spread = [torch.stack([tensor, tensor], 1).to(device)[:, 0] for tensor in (logits, label)]
    for our, their in zip(run(kernel.bce_loss, *spread), expected, strict=True):
        assert torch.equal(our, their)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in the interpreter
@pytest.mark.parametrize("logit", [0.0, 1e-6, 1e-3, 0.5, 1.0, 5.0, 17.0, 30.0, 80.0, 1000.0])
def test_exact_where_the_loss_is_tiny_or_huge(logit, device):
    """Each sample alone: in a sum, the large ones would hide the small."""
    for sign in (1.0, -1.0):
        for truth in (0.0, 1.0):
            logits, label = torch.tensor([sign * logit]), torch.tensor([truth])
            loss, grad = run(kernel.bce_loss, logits.to(device), label.to(device))
            exact, exact_grad = run(reference.bce_loss, logits.double(), label.double())
            # a logit of a negative is subtracted from itself, as torch does
            atol = 1e-37 if sign > 0 or truth > 0 else 2e-7 * logit
            # the exponential of a large number has the rounding of that number, times it
            torch.testing.assert_close(loss.cpu().double(), exact, rtol=1e-6 + 2e-7 * logit, atol=atol)
            torch.testing.assert_close(grad.cpu().double(), exact_grad, rtol=1e-6 + 2e-7 * logit, atol=1e-7)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("logit", [INF, -INF, NAN])
@pytest.mark.parametrize("truth", [0.0, 1.0, 0.5])
def test_not_finite_as_torch(logit, truth, device):
    logits, label = torch.tensor([0.5, logit, -0.5]), torch.tensor([1.0, truth, 0.0])
    loss, grad = run(kernel.bce_loss, logits.to(device), label.to(device))
    expected, expected_grad = run(reference.bce_loss, logits, label)
    torch.testing.assert_close(loss.cpu(), expected, equal_nan=True)
    torch.testing.assert_close(grad.cpu(), expected_grad, equal_nan=True)


def test_gradient_is_the_slope_of_the_loss(device, random):
    logits, label = made(5, random, scale=1.0)
    logits, label = logits.to(device), label.to(device)
    _, grad = run(kernel.bce_loss, logits, label)
    step = 0.1
    for sample in range(5):
        away = torch.zeros(5, device=device)
        away[sample] = step
        slope = (kernel.bce_loss(logits + away, label) - kernel.bce_loss(logits - away, label)) / (2 * step)
        assert slope.item() == pytest.approx(grad[sample].item(), abs=1e-3)


def test_reference_is_the_loss_of_pytorch(random):
    logits, label = made(10, random)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, label)
    assert torch.equal(bce_loss(logits, label), expected)
    assert bce_loss(logits.bfloat16(), label).dtype == torch.float32
    exact = logits.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda given: bce_loss(given, label.double()), exact)
    assert bce_loss(torch.zeros(4), torch.ones(4)).item() == pytest.approx(math.log(2))


@pytest.mark.gpu
def test_what_has_no_kernel_is_torchs(random):
    logits, label = (tensor.cuda() for tensor in made(10, random))
    assert bce_loss(logits.double(), label.double()).dtype == torch.float64
    assert bce_loss(logits[:0], label[:0]).isnan()
    with pytest.raises(ValueError, match="size"):
        bce_loss(logits, label[:5])
    label.requires_grad_()
    assert torch.autograd.grad(bce_loss(logits, label), label)[0].shape == label.shape


@pytest.mark.gpu
@pytest.mark.parametrize("num_samples", [1024, 20_000, 200_000])
def test_same_bits_again(num_samples, random):
    given = [tensor.cuda() for tensor in made(num_samples, random)]
    first = run(bce_loss, *given)
    for _ in range(5):
        for our, their in zip(run(bce_loss, *given), first, strict=True):
            assert torch.equal(our, their)


@pytest.mark.gpu
def test_in_a_cuda_graph(random):
    given = [tensor.cuda() for tensor in made(8192, random)]
    expected = run(bce_loss, *given)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(bce_loss, *given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(bce_loss, *given)
    graph.replay()
    for our, their in zip(found, expected, strict=True):
        assert torch.equal(our, their)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile instantiates the autograd function itself
def test_compiles(random):
    given = [tensor.cuda() for tensor in made(1024, random)]
    expected = run(bce_loss, *given)
    for our, their in zip(run(torch.compile(bce_loss, backend="aot_eager"), *given), expected, strict=True):
        assert torch.equal(our, their)
