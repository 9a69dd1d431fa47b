"""The input of a Wide & Deep model: kernels, forward and gradients, against the reference in double precision."""

import pytest
import torch

from hotrows.dense.linear import kernel_resize
from hotrows.dense.linear.kernel import layers
from hotrows.dense.linear.padding import aligned, padded_rows
from hotrows.dense.wide_deep_input import kernel, reference, wide_deep_input

SHAPES = [  # B, n, F, D
    (1, 1, 1, 1), (1, 0, 1, 1), (5, 13, 26, 16), (3, 13, 26, 96), (7, 0, 3, 5), (33, 3, 2, 1), (300, 2, 3, 4),
    (2, 200, 5, 8), (2, 13, 70, 64), (9, 8, 4, 4),
]  # fmt: skip
LARGE = [(1024, 13, 26, 96), (4099, 13, 26, 16), (1000, 0, 26, 96), (20_000, 4, 5, 7)]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}  # relative to the largest value
# the interpreter does not round to bfloat16, it cuts off
half_types = pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])


@pytest.fixture
def on_the_gpu_too(poisoned_memory) -> None:
    """There cuBLAS, of the reference, refuses deterministic algorithms without an environment variable."""
    torch.use_deterministic_algorithms(False)


def made(num_rows, num_dense, num_features, dim, random, with_layer=True):
    """Inputs and the gradients of the outputs."""
    dense = torch.randn(num_rows, num_dense, generator=random)
    embedded = torch.randn(num_rows, num_features, dim + 1, generator=random)
    weight = bias = None
    if with_layer and num_dense:
        weight, bias = torch.randn(1, num_dense, generator=random), torch.randn(1, generator=random)
    grad_deep = torch.randn(num_rows, num_dense + num_features * dim, generator=random)
    return (dense, embedded, weight, bias), (grad_deep, torch.randn(num_rows, generator=random))


def to(tensors, *target):
    return [None if tensor is None else tensor.to(*target) for tensor in tensors]


def run(function, inputs, grads):
    """The outputs, and the gradients of the inputs that are not None."""
    inputs = [None if tensor is None else tensor.detach().clone().requires_grad_() for tensor in inputs]
    outputs = function(*inputs)
    given = [tensor for tensor in inputs if tensor is not None]
    return *(output.detach() for output in outputs), *torch.autograd.grad(outputs, given, grads)


def ours(dense, embedded, weight, bias):
    return kernel.wide_deep_input(dense, embedded, weight, bias, embedded.dtype, embedded.dtype)


def check(found, truth, tolerance):
    for our, their in zip(found, truth, strict=True):
        assert our.shape == their.shape
        largest = their.abs().max().item() if their.numel() else 0.0
        torch.testing.assert_close(our.cpu().double(), their, rtol=0, atol=tolerance * largest)


def check_op(device, inputs, grads):
    found = run(ours, to(inputs, device), to(grads, device))
    check(found, run(reference.wide_deep_input, to(inputs, torch.float64), to(grads, torch.float64)), 1e-5)
    dense, embedded = inputs[0].to(device), inputs[1].to(device)
    num_dense = dense.shape[1]
    assert torch.equal(found[0][:, :num_dense], dense)
    assert torch.equal(found[0][:, num_dense:], embedded[..., :-1].flatten(1))
    assert torch.equal(found[3][..., :-1].flatten(1), grads[0].to(device)[:, num_dense:])
    assert torch.equal(found[3][..., -1], grads[1].to(device).unsqueeze(1).expand(embedded.shape[:2]))
    assert all(tensor.is_contiguous() for tensor in found[1:])


@pytest.mark.parametrize("with_layer", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_reference(shape, with_layer, device, random):
    check_op(device, *made(*shape, random, with_layer))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", LARGE)
def test_matches_reference_at_the_models_sizes(shape, random):
    check_op("cuda", *made(*shape, random))


@pytest.mark.parametrize(("columns", "tile"), [(64, 128), (256, 64), (1024, 4096)])
def test_rows_in_several_pieces(columns, tile, device, random, monkeypatch):
    monkeypatch.setattr(kernel, "FORWARD_COLUMNS", columns)
    monkeypatch.setattr(kernel, "FORWARD_TILE", tile)
    monkeypatch.setattr(kernel, "BACKWARD_TILE", tile)
    monkeypatch.setattr(kernel, "SUM_TILE", tile)
    check_op(device, *made(5, 13, 26, 16, random))
    check_op(device, *made(4, 70, 3, 10, random))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 13, 26, 16), (5, 13, 26, 96), (4, 0, 3, 8), (3, 2, 3, 7)])
def test_rows_are_padded_for_a_linear_layer(shape, dtype, device, random):
    inputs, _ = made(*shape, random)
    deep, _ = kernel.wide_deep_input(*to(inputs, device), dtype, torch.float32)
    width = deep.shape[1]
    assert deep.dtype == dtype
    assert deep.stride() == (aligned(width, dtype), 1)
    padded = padded_rows(deep, dtype)
    if padded is not None:
        assert torch.equal(padded[:, :width], deep)
        assert padded[:, width:].count_nonzero() == 0


def test_a_padded_gradient_is_not_copied(device, random):
    inputs, grads = made(5, 13, 26, 6, random)
    inputs, grads = to(inputs, device), to(grads, device)
    expected = run(ours, inputs, grads)
    width = grads[0].shape[1]
    between = torch.full((5, aligned(width, torch.float32)), float("nan"), device=device)
    between[:, :width] = grads[0]
    for grad in (between[:, :width], grads[0].t().contiguous().t()):
        for our, their in zip(run(ours, inputs, [grad, grads[1]]), expected, strict=True):
            assert torch.equal(our, their)


@half_types
def test_half_types(dtype, device, random):
    inputs, grads = made(5, 13, 26, 16, random)
    inputs, grads = to(inputs, dtype), to(grads, dtype)
    found = run(ours, to(inputs, device), to(grads, device))
    assert {tensor.dtype for tensor in found} == {dtype}
    truth = run(reference.wide_deep_input, to(inputs, torch.float64), to(grads, torch.float64))
    check(found, truth, TOLERANCE[dtype])


@half_types
def test_a_deep_input_of_half_type_from_rows_in_float32(dtype, device, random):
    inputs, (grad_deep, grad_wide) = made(5, 13, 26, 16, random)
    grads = grad_deep.to(dtype), grad_wide
    mixed = run(
        lambda *given: kernel.wide_deep_input(*given, dtype, torch.float32),
        to(inputs, device),
        [g.to(device) for g in grads],
    )
    assert [tensor.dtype for tensor in mixed] == [dtype] + [torch.float32] * 5
    assert torch.equal(mixed[0].cpu(), reference.wide_deep_input(*inputs)[0].to(dtype))
    truth = run(reference.wide_deep_input, to(inputs, torch.float64), [grad.double() for grad in grads])
    check(mixed[1:], truth[1:], 1e-5)


def test_inputs_that_are_not_contiguous(device, random):
    (dense, embedded, weight, bias), grads = made(5, 6, 7, 3, random)
    by_columns = dense.t().contiguous().t(), embedded.transpose(0, 1).contiguous().transpose(0, 1)
    check_op(device, (*by_columns, torch.cat([weight, weight]).t()[:, :1].t(), bias), grads)
    check_op(device, (dense, embedded, weight, bias), (grads[0][:, :1].expand_as(grads[0]), grads[1][:1].expand(5)))


@pytest.mark.parametrize("number", range(4))
def test_gradients_only_where_they_are_needed(number, device, random):
    inputs, grads = made(5, 3, 4, 6, random)
    inputs, grads = to(inputs, device), to(grads, device)
    whole = run(ours, inputs, grads)
    tensors = [tensor.clone().requires_grad_(i == number) for i, tensor in enumerate(inputs)]
    torch.autograd.backward(ours(*tensors), grads)
    assert [tensor.grad is not None for tensor in tensors] == [i == number for i in range(4)]
    assert torch.equal(tensors[number].grad, whole[2 + number])


def test_an_output_that_is_not_used(device, random):
    inputs, grads = made(5, 3, 4, 6, random)
    for number in (0, 1):
        tensors = [tensor.clone().to(device).requires_grad_() for tensor in inputs]
        ours(*tensors)[number].backward(grads[number].to(device))
        zeros = [grad if i == number else torch.zeros_like(grad) for i, grad in enumerate(grads)]
        expected = run(reference.wide_deep_input, inputs, zeros)[2:]
        for tensor, their in zip(tensors, expected, strict=True):
            torch.testing.assert_close(tensor.grad.cpu(), their)


def test_not_finite_stays_in_its_row(device, random):
    inputs, grads = made(5, 3, 4, 6, random)
    inputs[1][2, 1, 3] = float("nan")
    inputs[1][3, 1, -1] = float("inf")
    deep, wide, *_ = run(ours, to(inputs, device), to(grads, device))
    assert deep.isnan().sum() == 1
    assert wide.isfinite().tolist() == [True, True, True, False, True]


def test_into_a_linear_layer_without_a_copy(device, random, monkeypatch):
    """Neither the input nor its gradient is copied: the weight alone is resized."""
    if device.type == "cuda":
        torch.use_deterministic_algorithms(False)
    inputs, (_, grad_wide) = made(5, 13, 26, 6, random)
    weight, bias = torch.randn(24, 169, generator=random), torch.randn(24, generator=random)
    grad = torch.randn(5, 24, generator=random)

    def layer(make_input, padded, *tensors):
        deep, wide = make_input(*tensors[:4])
        return layers(deep, tensors[4:], [True], torch.float32, padded), wide

    given, grads = to((*inputs, weight, bias), device), to((grad, grad_wide), device)
    expected = run(lambda *tensors: layer(reference.wide_deep_input, False, *tensors), given, grads)
    resized = []
    original = kernel_resize._copy
    monkeypatch.setattr(kernel_resize, "_copy", lambda *of: resized.append(tuple(of[0].shape)) or original(*of))
    found = run(lambda *tensors: layer(ours, True, *tensors), given, grads)
    assert resized == [(24, 169), (24, 176)]
    for our, their in zip(found, expected, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-4)


def test_reference_is_what_the_papers_model_reads(random):
    (dense, embedded, weight, bias), _ = made(2, 3, 4, 2, random)
    deep, wide = wide_deep_input(dense, embedded, weight, bias)
    for i in range(2):
        vectors = [embedded[i, f, :2] for f in range(4)]
        torch.testing.assert_close(deep[i], torch.cat([dense[i], *vectors]))
        weights = sum(embedded[i, f, 2] for f in range(4))
        torch.testing.assert_close(wide[i], weights + dense[i] @ weight[0] + bias[0])
    torch.testing.assert_close(wide_deep_input(dense, embedded)[1], embedded[..., -1].sum(1))
    exact = [tensor.double().requires_grad_() for tensor in (dense, embedded, weight, bias)]
    assert torch.autograd.gradcheck(wide_deep_input, exact)


@pytest.mark.gpu
@pytest.mark.usefixtures("on_the_gpu_too")
def test_what_has_no_kernel_is_torchs(random):
    inputs, _ = made(4, 3, 4, 2, random)
    exact = to(inputs, "cuda", torch.float64)
    for our, their in zip(wide_deep_input(*exact), reference.wide_deep_input(*exact), strict=True):
        assert torch.equal(our, their)
    dense, embedded, *_ = to(inputs, "cuda")
    assert wide_deep_input(dense[:0], embedded[:0])[0].shape == (0, 11)
    with pytest.raises(RuntimeError):
        wide_deep_input(dense[:3], embedded)


@pytest.mark.gpu
@half_types
@pytest.mark.usefixtures("on_the_gpu_too")
def test_autocast_decides_the_type(dtype, random):
    inputs, _ = made(4, 3, 4, 2, random)
    with torch.autocast("cuda", dtype=dtype):
        deep, wide = wide_deep_input(*to(inputs, "cuda"))
        assert (deep.dtype, wide.dtype) == (dtype, torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", LARGE)
def test_same_bits_again(shape, random):
    inputs, grads = made(*shape, random)
    inputs, grads = to(inputs, "cuda"), to(grads, "cuda")
    first = run(wide_deep_input, inputs, grads)
    for _ in range(5):
        for our, their in zip(run(wide_deep_input, inputs, grads), first, strict=True):
            assert torch.equal(our, their)


@pytest.mark.gpu
def test_in_a_cuda_graph(random):
    inputs, grads = made(512, 13, 26, 96, random)
    inputs, grads = to(inputs, "cuda"), to(grads, "cuda")
    expected = run(wide_deep_input, inputs, grads)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(wide_deep_input, inputs, grads)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(wide_deep_input, inputs, grads)
    graph.replay()
    for our, their in zip(found, expected, strict=True):
        assert torch.equal(our, their)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile instantiates the autograd function itself
def test_compiles(random):
    inputs, grads = made(512, 13, 26, 96, random)
    inputs, grads = to(inputs, "cuda"), to(grads, "cuda")
    expected = run(wide_deep_input, inputs, grads)
    found = run(torch.compile(wide_deep_input, backend="aot_eager"), inputs, grads)
    for our, their in zip(found, expected, strict=True):
        assert torch.equal(our, their)
