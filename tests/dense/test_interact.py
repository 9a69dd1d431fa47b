"""Dot interaction: kernels, forward and gradients, against the reference in double precision."""

from collections.abc import Iterator

import pytest
import torch

from hotrows.dense.interact import interact, kernel, reference
from hotrows.dense.linear.padding import aligned, padded_rows

SHAPES = [  # V, D
    (2, 1), (2, 128), (3, 4), (3, 200), (16, 16), (17, 17), (17, 64), (27, 1), (27, 16), (27, 64), (27, 128), (27, 200),
    (40, 4), (40, 17), (40, 128), (64, 64),
]  # fmt: skip
# of the products' type, where sums are in float32: relative to the largest value
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
TF32 = 1e-2

# the interpreter multiplies bfloat16 as if its bits were whole numbers
half_types = pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])


@pytest.fixture
def cublas(poisoned_memory) -> None:
    """For a reference on the GPU, where cuBLAS refuses deterministic algorithms without an environment variable."""
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def made(num_samples, num_vectors, dim, with_summary, random, dtype=torch.float32, embedded_dtype=None):
    summary = torch.randn(num_samples, dim, generator=random).to(dtype) if with_summary else None
    embedded = torch.randn(num_samples, num_vectors - with_summary, dim, generator=random)
    width = num_vectors * (num_vectors - 1) // 2 + (dim if with_summary else 0)
    grad = torch.randn(num_samples, width, generator=random).to(dtype)
    return summary, embedded.to(embedded_dtype or dtype), grad


def run(function, summary, embedded, grad):
    """The output and the gradients of [summary, embedded], or of `embedded` alone."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (summary, embedded) if tensor is not None]
    output = function(*inputs) if summary is not None else function(None, *inputs)
    return output.detach(), *torch.autograd.grad(output, inputs, grad)


def check(device, summary, embedded, grad, tolerance=None):
    exact = [None if tensor is None else tensor.double() for tensor in (summary, embedded, grad)]
    expected = run(reference.interact, *exact)
    given = [None if tensor is None else tensor.to(device) for tensor in (summary, embedded, grad)]
    found = run(lambda *inputs: kernel.interact(*inputs, grad.dtype), *given)
    inputs = [tensor for tensor in (summary, embedded) if tensor is not None]
    assert [tensor.dtype for tensor in found] == [grad.dtype, *(tensor.dtype for tensor in inputs)]
    assert all(tensor.is_contiguous() for tensor in found[1:])
    for ours, truth in zip(found, expected, strict=True):
        assert ours.shape == truth.shape
        largest = truth.abs().max().item() if truth.numel() else 0.0
        atol = (tolerance or TOLERANCE[grad.dtype]) * largest
        torch.testing.assert_close(ours.cpu().double(), truth, rtol=0, atol=atol)
    if summary is not None:
        assert torch.equal(found[0][:, : summary.shape[1]].cpu(), summary)


@pytest.mark.parametrize("with_summary", [True, False])
@pytest.mark.parametrize(("num_vectors", "dim"), SHAPES)
@pytest.mark.parametrize("num_samples", [1, 5])
def test_matches_reference(num_samples, num_vectors, dim, with_summary, device, random):
    check(device, *made(num_samples, num_vectors, dim, with_summary, random))


@pytest.mark.parametrize("with_summary", [True, False])
@half_types
def test_half_types(dtype, with_summary, device, random):
    for num_vectors, dim in [(3, 4), (27, 128), (40, 200), (64, 64)]:
        check(device, *made(3, num_vectors, dim, with_summary, random, dtype))


@half_types
def test_rows_in_float32_under_a_summary_of_half_type(dtype, device, random):
    for num_vectors, dim in [(3, 4), (27, 16), (27, 128), (40, 200)]:
        check(device, *made(3, num_vectors, dim, True, random, dtype, torch.float32))


@half_types
def test_rows_in_float32_alone_multiplied_in_half_type(dtype, device, random):
    check(device, *made(3, 27, 64, False, random, dtype, torch.float32))


@pytest.mark.gpu
def test_tf32(random):
    torch.set_float32_matmul_precision("high")
    for num_vectors, dim in SHAPES:
        check("cuda", *made(5, num_vectors, dim, True, random), tolerance=TF32)


@pytest.mark.parametrize("with_summary", [True, False])
def test_empty_batch(with_summary, device, random):
    check(device, *made(0, 27, 16, with_summary, random))


def test_no_pair(device, random):
    check(device, *made(3, 1, 4, True, random))
    check(device, *made(3, 1, 4, False, random))


@pytest.mark.parametrize("num_samples", [1, 5, 8])
def test_several_samples_a_program(num_samples, device, random, monkeypatch):
    monkeypatch.setattr(kernel, "FORWARD_SAMPLES", 4)
    monkeypatch.setattr(kernel, "BACKWARD_SAMPLES", 2)
    check(device, *made(num_samples, 27, 16, True, random))
    check(device, *made(num_samples, 5, 200, False, random))


def test_inputs_that_are_not_contiguous(device, random):
    summary, embedded, grad = made(5, 7, 6, True, random)
    check(device, summary.t().contiguous().t(), embedded.transpose(0, 1).contiguous().transpose(0, 1), grad)
    check(device, summary, embedded, grad[:, :1].expand_as(grad))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("num_vectors", "dim"), [(27, 128), (27, 16), (4, 2), (3, 4), (2, 1)])
def test_rows_are_padded_for_a_linear_layer(num_vectors, dim, dtype, device, random):
    summary, embedded, _ = made(5, num_vectors, dim, True, random, dtype)
    output = kernel.interact(summary.to(device), embedded.to(device), dtype)
    width = output.shape[1]
    assert output.stride() == (aligned(width, dtype), 1)
    padded = padded_rows(output, dtype)
    if padded is not None:
        assert padded[:, width:].count_nonzero() == 0


def test_a_padded_gradient_is_not_copied(device, random):
    given = [tensor.to(device) for tensor in made(5, 27, 128, True, random)]
    expected = run(lambda *inputs: kernel.interact(*inputs, torch.float32), *given)
    between = torch.full((5, 480), float("nan"), device=device)
    between[:, :479] = given[2]
    found = run(lambda *inputs: kernel.interact(*inputs, torch.float32), *given[:2], between[:, :479])
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_not_finite_stays_in_its_sample(device, random):
    summary, embedded, grad = made(3, 5, 4, True, random)
    embedded[1, 2, 3] = float("nan")
    given = [tensor.to(device) for tensor in (summary, embedded, grad)]
    output, grad_summary, grad_embedded = run(lambda *inputs: kernel.interact(*inputs, torch.float32), *given)
    assert output[1].isnan().sum() == 4
    for found in (output, grad_summary, grad_embedded):
        assert found[1].isnan().any()
        assert found[[0, 2]].isfinite().all()


def test_same_bits_in_any_batch(device, random):
    summary, embedded, grad = (tensor.to(device) for tensor in made(9, 27, 64, True, random))
    whole = run(lambda *inputs: kernel.interact(*inputs, torch.float32), summary, embedded, grad)
    order = torch.randperm(9, generator=random).to(device)[:7]
    part = run(lambda *inputs: kernel.interact(*inputs, torch.float32), summary[order], embedded[order], grad[order])
    for ours, theirs in zip(whole, part, strict=True):
        assert torch.equal(ours[order], theirs)


def test_reference_is_every_pair_once(random):
    summary, embedded, _ = made(2, 4, 3, True, random)
    output = interact(summary, embedded)
    vectors = torch.cat([summary.unsqueeze(1), embedded], dim=1)
    pairs = [(vectors[:, i] * vectors[:, j]).sum(1, keepdim=True) for i in range(4) for j in range(i)]
    torch.testing.assert_close(output, torch.cat([summary, *pairs], dim=1))
    torch.testing.assert_close(interact(None, vectors), torch.cat(pairs, dim=1))
    exact = [tensor.double().requires_grad_() for tensor in (summary, embedded)]
    assert torch.autograd.gradcheck(interact, exact)


@pytest.mark.gpu
@pytest.mark.usefixtures("cublas")
def test_autocast_decides_the_type(random):
    summary, embedded, _ = made(5, 27, 64, True, random)
    summary, embedded = summary.cuda(), embedded.cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert interact(summary.bfloat16(), embedded).dtype == torch.bfloat16
        assert interact(None, embedded).dtype == torch.bfloat16
    assert interact(summary.bfloat16(), embedded).dtype == torch.bfloat16
    assert interact(summary, embedded.bfloat16()).dtype == torch.float32
    assert interact(summary.double(), embedded).dtype == torch.float64


@pytest.mark.gpu
@pytest.mark.usefixtures("cublas")
def test_more_vectors_than_a_program_holds(random):
    _, embedded, _ = made(2, 200, 4, False, random)
    found = interact(None, embedded.cuda()).cpu()
    torch.testing.assert_close(found, reference.interact(None, embedded), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("with_summary", [True, False])
def test_in_a_cuda_graph(with_summary, random):
    summary, embedded, grad = (
        None if tensor is None else tensor.cuda() for tensor in made(64, 27, 128, with_summary, random)
    )
    expected = run(interact, summary, embedded, grad)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(interact, summary, embedded, grad)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(interact, summary, embedded, grad)
    graph.replay()
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile instantiates the autograd function itself
def test_compiles_into_one_graph(random):
    summary, embedded, grad = (tensor.cuda() for tensor in made(64, 27, 128, True, random))
    expected = run(interact, summary, embedded, grad)
    found = run(torch.compile(interact, fullgraph=True, backend="aot_eager"), summary, embedded, grad)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
