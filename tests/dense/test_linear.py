"""A linear layer and its ReLU: kernels, forward and gradients, against the reference in double precision."""

import ctypes
import gc
import itertools
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest
import torch

from hotrows.dense.linear import Layer, kernel, linear_layers, reference, room
from hotrows.dense.linear import kernel_resize as resize
from hotrows.dense.linear import kernel_sums as sums
from hotrows.dense.linear.padding import aligned
from hotrows.runtime import cuda_private

SHAPES = [  # B, K, N
    (1, 1, 1), (1, 8, 8), (2, 13, 16), (5, 16, 13), (5, 13, 1), (7, 479, 24), (33, 256, 1), (40, 7, 5), (64, 32, 64),
    (3, 2509, 8), (3, 2509, 1), (130, 3, 130),
]  # fmt: skip
LARGE = [(1024, 13, 512), (1000, 479, 1024), (1024, 2509, 1024), (1024, 256, 1), (4099, 1024, 256), (4099, 100, 33)]
# By the type of the products; sums are in float32. Relative to the largest value.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
TF32 = 1e-2
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]

both = pytest.mark.parametrize("relu", [True, False])


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(autouse=True)
def cublas(poisoned_memory) -> None:
    """On the GPU cuBLAS refuses deterministic algorithms without an environment variable."""
    if torch.cuda.is_available():
        torch.use_deterministic_algorithms(False)


@pytest.fixture
def only_triton(cublas) -> None:
    """For tests that do not call cuBLAS: memory is poisoned on the GPU too."""
    torch.use_deterministic_algorithms(True)


def made(num_rows, num_inputs, num_outputs, random, dtype=torch.float32):
    x = torch.randn(num_rows, num_inputs, generator=random)
    weight = torch.randn(num_outputs, num_inputs, generator=random) / num_inputs**0.5
    bias = torch.randn(num_outputs, generator=random)
    grad = torch.randn(num_rows, num_outputs, generator=random)
    return [tensor.to(dtype) for tensor in (x, weight, bias, grad)]


def run(function, x, weight, bias, grad, relu):
    """The output and the gradients of x, the weight and the bias."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (x, weight, bias)]
    out = function(*inputs, relu)
    return out.detach(), *torch.autograd.grad(out, inputs, grad)


def ours(x, weight, bias, relu, **options):
    return kernel.layers(x, [weight, bias], [relu], x.dtype, **options)


def linear(x, weight, bias, relu, **options):
    return linear_layers(x, [Layer(weight, bias, relu)], **options)


def plain(x, weight, bias, relu):
    return reference.linear_layers(x, [Layer(weight, bias, relu)])


def exact(x, weight, bias, grad, relu, out):
    """The same in double precision. The gradient passes where `out` is above zero, so that rounding decides nothing."""
    x, weight, bias, grad, out = (tensor.double().cpu() for tensor in (x, weight, bias, grad, out))
    before = x @ weight.t() + bias
    if relu:
        grad = grad * (out > 0)
    return before.clamp(min=0) if relu else before, grad @ weight, grad.t() @ x, grad.sum(0)


def check(found, truth, tolerance):
    for our, their in zip(found, truth, strict=True):
        assert our.is_contiguous()
        assert our.shape == their.shape
        atol = tolerance * their.abs().max().item()
        torch.testing.assert_close(our.cpu().double(), their, rtol=0, atol=atol)


def check_op(device, x, weight, bias, grad, relu, tolerance=None):
    given = [tensor.to(device) for tensor in (x, weight, bias, grad)]
    found = run(ours, *given, relu)
    assert [tensor.dtype for tensor in found] == [x.dtype] * 4
    check(found, exact(x, weight, bias, grad, relu, found[0]), tolerance or TOLERANCE[x.dtype])


@both
@pytest.mark.parametrize(("num_rows", "num_inputs", "num_outputs"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_matches_reference(num_rows, num_inputs, num_outputs, relu, dtype, device, random):
    check_op(device, *made(num_rows, num_inputs, num_outputs, random, dtype), relu)


@both
@pytest.mark.gpu
@pytest.mark.parametrize(("num_rows", "num_inputs", "num_outputs"), LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_matches_reference_at_the_models_sizes(num_rows, num_inputs, num_outputs, relu, dtype, random):
    check_op("cuda", *made(num_rows, num_inputs, num_outputs, random, dtype), relu)


@pytest.mark.gpu
@pytest.mark.parametrize(("num_rows", "num_inputs", "num_outputs"), LARGE)
def test_tf32(num_rows, num_inputs, num_outputs, random):
    torch.set_float32_matmul_precision("high")
    check_op("cuda", *made(num_rows, num_inputs, num_outputs, random), True, TF32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_rows", "num_outputs", "width"), [(1, 2, 2), (33, 13, 16), (65, 128, 128), (200, 130, 136), (1000, 3, 8)]
)
@pytest.mark.parametrize("num_programs", [1024, 3, 1])
@pytest.mark.usefixtures("only_triton")
def test_mask_and_sum(num_rows, num_outputs, width, dtype, num_programs, device, random, monkeypatch):
    monkeypatch.setattr(sums, "PROGRAMS", num_programs)
    grad = torch.randn(num_rows, num_outputs, generator=random).to(dtype)
    out = torch.randn(num_rows, num_outputs, generator=random).clamp(min=0).to(dtype)
    weight = torch.randn(width, 70, generator=random).to(dtype)
    parts = sums.make_parts(grad.to(device), num_rows, [5, num_outputs])
    expected = torch.where(out > 0, grad, 0)
    wide = with_stride(grad, width + 8, float("nan")).to(device), with_stride(out, width + 24, float("nan")).to(device)
    for given in [(grad.to(device), out.to(device)), wide]:
        found = sums.mask_and_sum(*given, num_outputs, width, parts, 1, transpose=True, weight=weight.to(device))
        assert torch.equal(found.rows[:, :num_outputs].cpu(), expected)
        assert found.rows.shape == (num_rows, width)
        assert found.rows[:, num_outputs:].count_nonzero() == 0
        assert torch.equal(found.transposed, found.rows.t())
        assert found.transposed.is_contiguous()
        assert torch.equal(found.weight.cpu(), weight.t())
        assert found.weight.is_contiguous()
        added = sums.add(parts)[parts.starts[1] :][:num_outputs].cpu().double()
        torch.testing.assert_close(added, expected.double().sum(0), rtol=1e-5, atol=1e-4)
    same = sums.mask_and_sum(grad.to(device), None, num_outputs, num_outputs, parts, 1)
    assert torch.equal(same.rows.cpu(), grad)
    assert (same.transposed, same.weight) == (None, None)
    added = sums.add(parts)[parts.starts[1] :][:num_outputs].cpu().double()
    torch.testing.assert_close(added, grad.double().sum(0), rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("only_triton")
def test_more_parts_than_one_tile_adds(device, random):
    grad = torch.randn(9000, 128, generator=random)
    parts = sums.make_parts(grad.to(device), 9000, [128])
    assert parts.values.shape[0] > sums.PART_ROWS
    sums.mask_and_sum(grad.to(device), None, 128, 128, parts, 0)
    torch.testing.assert_close(sums.add(parts).cpu().double(), grad.double().sum(0), rtol=1e-5, atol=1e-4)


SEVERAL = [  # sizes, ReLUs
    ([13, 24, 1], [True, False]),
    ([16, 24, 8], [True, True]),
    ([13, 7, 5, 1], [True, True, False]),
    ([8, 16, 16, 1], [False, True, True]),
    ([479, 72, 16], [True, False]),
    ([5, 1, 6, 1], [True, True, False]),
    ([9, 1, 1], [True, False]),
]


def several(sizes, random, device="cpu", dtype=torch.float32):
    """Weights and biases, as tensors that take a gradient."""
    found = []
    for num_in, num_out in itertools.pairwise(sizes):
        found += [torch.randn(num_out, num_in, generator=random) / num_in**0.5, torch.randn(num_out, generator=random)]
    return [tensor.to(device, dtype).requires_grad_() for tensor in found]


def gradients_of_several(sizes, relus, device, random, dtype=torch.float32, num_rows=40):
    """The output, and the gradients of x and all parameters: ours, and those in double precision."""
    x = torch.randn(num_rows, sizes[0], generator=random).to(device, dtype).requires_grad_()
    given = [x, *several(sizes, random, device, dtype)]
    grad = torch.randn(num_rows, sizes[-1], generator=random).to(device, dtype)
    out = kernel.layers(given[0], given[1:], relus, dtype)
    found = [out, *torch.autograd.grad(out, given, grad)]
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    layers = [Layer(weight, bias, relu) for weight, bias, relu in zip(exact[1::2], exact[2::2], relus, strict=True)]
    truth = reference.linear_layers(exact[0], layers)
    return found, [truth, *torch.autograd.grad(truth, exact, grad.double())]


@pytest.mark.parametrize(("sizes", "relus"), SEVERAL)
@pytest.mark.parametrize("transpose", [False, True])
def test_several_layers(sizes, relus, transpose, device, random, monkeypatch):
    if transpose:
        for name in ("TRANSPOSE_GRADIENT", "TRANSPOSE_WEIGHT"):
            monkeypatch.setattr(kernel, name, (1, 1, 1))
        monkeypatch.setattr(kernel, "tf32_allowed", lambda: True)
    are_contiguous = []
    original = kernel._product
    monkeypatch.setattr(kernel, "_product", lambda *of: are_contiguous.append(of[0].is_contiguous()) or original(*of))
    found, truth = gradients_of_several(sizes, relus, device, random)
    assert all(are_contiguous) == transpose or len(are_contiguous) == 0
    for our, their in zip(found, truth, strict=True):
        assert our.shape == their.shape
        torch.testing.assert_close(our.double(), their, rtol=0, atol=1e-5 * their.abs().max().item())


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1024, 8192, 8198])
def test_several_layers_in_tf32(num_rows, random):
    torch.set_float32_matmul_precision("high")
    sizes, relus = [479, 1024, 512, 256, 1], [True, True, True, False]
    found, truth = gradients_of_several(sizes, relus, "cuda", random, num_rows=num_rows)
    for our, their in zip(found, truth, strict=True):
        # Where rounding decides on which side of zero a number is, the gradient of its row differs.
        difference = (our.double() - their).abs() / their.abs().max()
        assert difference.square().mean().sqrt() < TF32


def test_only_some_parameters_of_several_layers(device, random):
    sizes, relus = [13, 24, 16, 1], [True, True, False]
    x = torch.randn(40, 13, generator=random).to(device)
    given = several(sizes, random, device)
    grad = torch.randn(40, 1, generator=random).to(device)
    inputs = [x.clone().requires_grad_(), *given]
    expected = torch.autograd.grad(kernel.layers(inputs[0], given, relus, x.dtype), inputs, grad)
    for number in range(7):
        tensors = [tensor.detach().clone().requires_grad_(i == number) for i, tensor in enumerate(inputs)]
        kernel.layers(tensors[0], tensors[1:], relus, x.dtype).backward(grad)
        assert [tensor.grad is not None for tensor in tensors] == [i == number for i in range(7)]
        torch.testing.assert_close(tensors[number].grad, expected[number])


def alive_at_each_product(monkeypatch, name, tensor_of):
    """For every call of a function of the kernel, how many of the given tensors of earlier calls are alive."""
    found, seen = [], []
    original = getattr(kernel, name)

    def watched(*arguments):
        gc.collect()
        found.append(sum(reference() is not None for reference in seen))
        output = original(*arguments)
        seen.append(weakref.ref(tensor_of(arguments, output)))
        return output

    monkeypatch.setattr(kernel, name, watched)
    return found


def test_without_gradients_nothing_is_kept(device, random, monkeypatch):
    given = several([16, 24, 24, 24, 24, 8], random, device)
    x = torch.randn(9, 16, generator=random).to(device)
    found = alive_at_each_product(monkeypatch, "_multiply", lambda _arguments, output: output[2])
    with torch.no_grad():
        kernel.layers(x, given, [True] * 5, x.dtype)
    assert found == [0, 1, 1, 1, 1]
    found.clear()
    kernel.layers(x, [tensor.detach() for tensor in given], [True] * 5, x.dtype)
    assert found[1:] == [1, 1, 1, 1]
    for tensor in given[:6]:
        tensor.requires_grad_(False)
    out = kernel.layers(x, given, [True] * 5, x.dtype)
    assert [tensor is not None for tensor in out.grad_fn.saved_tensors[:5]] == [False, False, False, True, True]
    expected = torch.autograd.grad(out.sum(), given[6:])
    assert all(tensor.isfinite().all() for tensor in expected)


def test_the_backward_pass_frees_what_it_no_longer_needs(device, random, monkeypatch):
    given = several([16, 24, 24, 24, 24, 1], random, device)
    out = kernel.layers(torch.randn(9, 16, generator=random).to(device), given, [True] * 4 + [False], torch.float32)
    found = alive_at_each_product(monkeypatch, "_grad_weight", lambda arguments, _output: arguments[1].x)
    out.backward(torch.ones_like(out))
    assert found == [0, 1, 1, 1]  # the layer above, whose ReLU made it


def test_backward_again_if_the_graph_is_kept(device, random):
    given = several([13, 24, 1], random, device)
    out = kernel.layers(torch.randn(9, 13, generator=random).to(device), given, [True, False], torch.float32)
    first = torch.autograd.grad(out.sum(), given, retain_graph=True)
    for our, their in zip(torch.autograd.grad(out.sum(), given), first, strict=True):
        assert torch.equal(our, their)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out.sum(), given)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 479), (3, 13), (300, 1), (1, 200)])
@pytest.mark.usefixtures("only_triton")
def test_resized(shape, dtype, device, random):
    given = torch.randn(*shape, generator=random)
    for num_rows, width in [(shape[0], shape[1] + 3), (shape[0] + 7, shape[1]), (shape[0] + 1, shape[1] + 130)]:
        larger = resize.resized(given.to(device), num_rows, width, dtype)
        assert larger.dtype == dtype
        assert torch.equal(larger[: shape[0], : shape[1]].cpu(), given.to(dtype))
        assert larger.count_nonzero() == given.to(dtype).count_nonzero()
        assert torch.equal(resize.resized(larger, *shape, torch.float32).cpu(), given.to(dtype).float())
    assert resize.resized(given, *shape, torch.float32) is given


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("shape", [(8, 16), (24, 479), (13, 5), (100, 300)])
@pytest.mark.usefixtures("only_triton")
def test_a_layer_changes_its_type_in_one_pass(shape, dtype, device, random):
    _, weight, bias, _ = (tensor.to(device) for tensor in made(1, shape[1], shape[0], random))
    num_rows, width = aligned(shape[0], dtype), aligned(shape[1], dtype)
    changed, changed_bias = resize.resized_layer(weight, bias, num_rows, width, dtype)
    assert torch.equal(changed, resize.resized(weight.to(dtype), num_rows, width, dtype))
    assert torch.equal(changed_bias, bias.to(dtype))
    same, same_bias = resize.resized_layer(changed, changed_bias, num_rows, width, dtype)
    assert (same.data_ptr(), same_bias.data_ptr()) == (changed.data_ptr(), changed_bias.data_ptr())


def with_stride(x, stride, between):
    """The same matrix with rows at this stride."""
    rows = x.new_full((x.shape[0], stride), between)
    rows[:, : x.shape[1]] = x
    return rows[:, : x.shape[1]]


@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(479, 24), (13, 5), (16, 8), (13, 1)])
def test_padded_rows_are_not_copied(num_inputs, num_outputs, device, random, monkeypatch):
    x, weight, bias, grad = (tensor.to(device) for tensor in made(9, num_inputs, num_outputs, random))
    expected = run(ours, x, weight, bias, grad, True)
    inputs = [with_stride(x, aligned(num_inputs, x.dtype), 0.0), weight.clone(), bias.clone()]
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    copied = []
    original = resize._copy
    monkeypatch.setattr(resize, "_copy", lambda *of: copied.append(of[0].shape[0]) or original(*of))
    out = ours(*inputs, True, padded=True)
    found = torch.autograd.grad(out, inputs, grad)
    assert x.shape[0] not in copied
    for our, their in zip((out, *found), expected, strict=True):
        assert torch.equal(our, their)


def test_what_is_between_other_rows_is_not_read(device, random):
    x, weight, bias, grad = (tensor.to(device) for tensor in made(9, 13, 5, random))
    expected = run(ours, x, weight, bias, grad, True)
    for stride, padded in [(16, False), (15, True), (24, True)]:
        rows = with_stride(x, stride, float("nan")).requires_grad_()
        out = ours(rows, weight, bias, True, padded=padded)
        assert torch.equal(out, expected[0])
        assert torch.equal(torch.autograd.grad(out, rows, grad)[0], expected[1])
    half = with_stride(x.half(), 16, 0.0)  # of another type than is multiplied
    out = kernel.layers(half, [weight, bias], [True], x.dtype, padded=True)
    torch.testing.assert_close(out, expected[0], atol=0.01, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_one_output_onto_another(dtype, device, random):
    x, weight, bias, grad = (tensor.to(device) for tensor in made(9, 16, 1, random, dtype))
    onto = torch.randn(9, 1, generator=random).to(device).requires_grad_()
    alone = run(ours, x, weight, bias, grad, False)
    inputs = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    out = ours(*inputs, False, onto=onto)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, alone[0] + onto, rtol=0, atol=4 * TOLERANCE[dtype])
    *found, grad_onto = torch.autograd.grad(out, [*inputs, onto], grad.float())
    assert torch.equal(grad_onto, grad.float())
    for our, their in zip(found, alone[1:], strict=True):
        assert torch.equal(our, their)


def test_onto_of_another_type(device, random):
    x, weight, bias, grad = (tensor.to(device) for tensor in made(9, 16, 1, random))
    onto = torch.randn(9, 1, generator=random).half().to(device).requires_grad_()
    out = ours(x, weight, bias, False, onto=onto)
    torch.testing.assert_close(out, ours(x, weight, bias, False) + onto)
    assert torch.equal(torch.autograd.grad(out, onto, grad)[0], grad.half())


def test_onto_anything(any_device, random):
    """With and without a pass of its own."""
    for num_outputs, relu, shape in [(1, False, (6, 1)), (1, True, (6, 1)), (5, False, (6, 5)), (5, True, (1, 5))]:
        x, weight, bias, grad = (tensor.to(any_device) for tensor in made(6, 13, num_outputs, random))
        onto = torch.randn(shape, generator=random).to(any_device)
        found = run(lambda *given, to=onto: linear(*given, onto=to), x, weight, bias, grad, relu)
        expected = run(lambda *given, to=onto: plain(*given) + to, x, weight, bias, grad, relu)
        for our, their in zip(found, expected, strict=True):
            torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-5)


def test_gradients_only_where_they_are_needed(device, random):
    for num_inputs, num_outputs in [(13, 16), (16, 1)]:
        given = [tensor.to(device) for tensor in made(9, num_inputs, num_outputs, random)]
        *inputs, grad = given
        expected = run(ours, *given, True)
        for number in range(3):
            tensors = [tensor.clone().requires_grad_(i == number) for i, tensor in enumerate(inputs)]
            ours(*tensors, True).backward(grad)
            assert [tensor.grad is not None for tensor in tensors] == [i == number for i in range(3)]
            torch.testing.assert_close(tensors[number].grad, expected[1 + number])


def test_tensors_that_are_not_contiguous(device, random):
    for num_inputs, num_outputs in [(16, 8), (13, 5), (16, 1)]:
        x, weight, bias, grad = (tensor.to(device) for tensor in made(9, num_inputs, num_outputs, random))
        expected = run(ours, x, weight, bias, grad, True)
        by_columns = [tensor.t().contiguous().t() for tensor in (x, weight)]
        spread = torch.stack([bias, bias], 1)[:, 0]
        inputs = [tensor.requires_grad_() for tensor in (*by_columns, spread)]
        out = ours(*inputs, True)
        found = torch.autograd.grad(out, inputs, torch.stack([grad, grad], 2)[:, :, 0])
        for our, their in zip((out, *found), expected, strict=True):
            torch.testing.assert_close(our, their)


def test_not_finite_stays_in_its_row(device, random):
    for num_inputs, num_outputs in [(13, 16), (16, 1)]:
        x, weight, bias, grad = made(5, num_inputs, num_outputs, random)
        x[2, 3] = float("inf")
        out, grad_x, *_ = run(ours, *(tensor.to(device) for tensor in (x, weight, bias, grad)), False)
        rest = [0, 1, 3, 4]
        assert not out[2].isfinite().any()
        assert out[rest].isfinite().all()
        assert grad_x.isfinite().all()


def test_reference_is_the_layer_and_its_relu(random):
    x, weight, bias, _ = (tensor.double().requires_grad_() for tensor in made(4, 3, 5, random))
    torch.testing.assert_close(linear(x, weight, bias, False), x @ weight.t() + bias)
    torch.testing.assert_close(linear(x, weight, bias, True), (x @ weight.t() + bias).clamp(min=0))
    assert torch.autograd.gradcheck(lambda *inputs: linear(*inputs, True), (x, weight, bias))


@pytest.mark.parametrize("shape", [(13,), (0, 13), (6, 13), (2, 3, 13), (2, 0, 13), (1, 2, 3, 13)])
@pytest.mark.parametrize("num_outputs", [16, 1])
def test_any_shape(shape, num_outputs, random, any_device):
    _, weight, bias, _ = made(1, 13, num_outputs, random)
    x = torch.randn(*shape, generator=random)
    grad = torch.randn(*shape[:-1], num_outputs, generator=random)
    expected = run(plain, x, weight, bias, grad, True)
    found = run(linear, *(tensor.to(any_device) for tensor in (x, weight, bias, grad)), True)
    for our, their in zip(found, expected, strict=True):
        torch.testing.assert_close(our.cpu(), their, rtol=1e-4, atol=1e-5)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def any_device(request) -> str:
    return request.param


def test_wrong_shapes_and_types_are_refused(any_device, random):
    x, weight, bias, _ = (tensor.to(any_device) for tensor in made(4, 479, 16, random))
    with pytest.raises(RuntimeError):
        linear(x[:, :478], weight, bias, True)
    with pytest.raises(RuntimeError):
        linear(x.half(), weight, bias, True)


@pytest.mark.gpu
def test_double_precision_is_computed_by_pytorch(random):
    x, weight, bias, _ = (tensor.double().cuda() for tensor in made(4, 13, 16, random))
    assert torch.equal(linear(x, weight, bias, True), plain(x, weight, bias, True))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert linear(x, weight, bias, True).dtype == plain(x, weight, bias, True).dtype


@both
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "num_inputs", "num_outputs"), LARGE)
def test_autocast(num_rows, num_inputs, num_outputs, relu, dtype, random):
    given = [tensor.cuda() for tensor in made(num_rows, num_inputs, num_outputs, random)]
    grad = given[3].to(dtype)
    with torch.autocast("cuda", dtype=dtype):
        inputs = [tensor.clone().requires_grad_() for tensor in given[:3]]
        out = linear(*inputs, relu)
    assert out.dtype == dtype
    found = out.detach(), *torch.autograd.grad(out, inputs, grad)
    assert [tensor.dtype for tensor in found[1:]] == [torch.float32] * 3
    check(found, exact(*given[:3], grad, relu, out.detach()), TOLERANCE[dtype])
    with torch.autocast("cuda", dtype=dtype):
        assert linear(given[0].to(dtype), *given[1:3], relu).dtype == dtype


@pytest.mark.gpu
def test_backward_inside_autocast_keeps_the_forwards_types(random):
    given = [tensor.cuda() for tensor in made(64, 479, 32, random)]
    expected = run(linear, *given, True)
    inputs = [tensor.clone().requires_grad_() for tensor in given[:3]]
    out = linear(*inputs, True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = torch.autograd.grad(out, inputs, given[3])
    for our, their in zip(found, expected[1:], strict=True):
        assert torch.equal(our, their)


@pytest.mark.gpu
@pytest.mark.parametrize(("num_rows", "num_inputs", "num_outputs"), LARGE)
def test_same_bits_again(num_rows, num_inputs, num_outputs, random):
    torch.set_float32_matmul_precision("high")
    given = [tensor.cuda() for tensor in made(num_rows, num_inputs, num_outputs, random)]
    first = run(linear, *given, True)
    for _ in range(5):
        for our, their in zip(run(linear, *given, True), first, strict=True):
            assert torch.equal(our, their)


@pytest.mark.gpu
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(479, 256), (256, 1)])
def test_in_a_cuda_graph(num_inputs, num_outputs, random):
    given = [tensor.cuda() for tensor in made(512, num_inputs, num_outputs, random)]
    expected = run(linear, *given, True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(linear, *given, True)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(linear, *given, True)
    graph.replay()
    for our, their in zip(found, expected, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile instantiates the autograd function itself
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(479, 256), (256, 1)])
def test_compiles(num_inputs, num_outputs, random):
    given = [tensor.cuda() for tensor in made(512, num_inputs, num_outputs, random)]
    expected = run(linear, *given, True)
    found = run(torch.compile(linear, backend="aot_eager"), *given, True)
    for our, their in zip(found, expected, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_large_products_leave_room():
    def target() -> int:
        found = ctypes.c_int(-1)
        cuda_private._cublas().cublasGetSmCountTarget(
            ctypes.c_void_p(torch.cuda.current_blas_handle()), ctypes.byref(found)
        )
        return found.value

    count = torch.cuda.get_device_properties(0).multi_processor_count
    before = target()
    large, small = torch.zeros(16384, 1, device="cuda"), torch.zeros(1, 1024, device="cuda")
    with room.with_room(large, small):
        assert target() == count - room.NUM_FREE
        with pytest.raises(RuntimeError), room.with_room(large, small):
            raise RuntimeError
        assert target() == count - room.NUM_FREE
    assert target() == before
    with room.with_room(small.t(), small):  # fewer tiles than multiprocessors
        assert target() == before
    carveout = torch._C._get_sm_carveout_experimental
    with room.with_room_beside_bias(large, small):
        assert carveout() == room.NUM_FREE
    assert carveout() is None
    with room.with_room_beside_bias(small.t(), small):
        assert carveout() is None
    torch._C._set_sm_carveout_experimental(8)
    try:
        with room.with_room_beside_bias(large, small):
            assert carveout() == 8, "what the user has set"
    finally:
        torch._C._set_sm_carveout_experimental(None)


def test_without_a_gpu_there_is_no_room_to_leave():
    large, small = torch.zeros(16384, 1), torch.zeros(1, 1024)
    with room.with_room(large, small), room.with_room_beside_bias(large, small):
        assert torch._C._get_sm_carveout_experimental() is None


def test_users_see_no_warning_that_a_call_is_experimental():
    code = "from hotrows.runtime import cuda_private; cuda_private.leave_multiprocessors_free(4)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "carveout" not in done.stderr
