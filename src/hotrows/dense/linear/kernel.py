"""Linear layers by cuBLAS, which multiplies matrices, and Triton, which does what only passes over memory.

Successive layers are one operation, so that one launch can do something for several of them.
Shapes: B rows, K inputs and N outputs of a layer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hotrows.dense.linear import kernel_one_output as one_output
from hotrows.dense.linear.kernel_resize import resized, resized_layer
from hotrows.dense.linear.kernel_sums import Gradient, Parts, add, make_parts, mask_and_sum
from hotrows.dense.linear.padding import aligned, padded_rows
from hotrows.dense.linear.room import with_room, with_room_beside_bias
from hotrows.dense.tf32 import tf32_allowed
from hotrows.runtime.cuda_private import addmm_relu

# The least B, K and N for which a product in TF32 saves more by a transposed operand than transposing it takes.
TRANSPOSE_GRADIENT = (1024, 448, 448)
TRANSPOSE_WEIGHT = (8192, 256, 256)

_FIRST = 6  # position of the first layer's weight among the arguments of the operation


class _Layer(NamedTuple):
    """What the backward pass needs of a layer.

    Args:
        x, weight: as they were multiplied, [B, K] and [N, K] with their padding.
        out: its output, perhaps with padding, if a ReLU made it.
        shape: of the weight as it was given.
        needs_weight, needs_bias: True if their gradients are needed.
    """

    x: Tensor
    weight: Tensor
    out: Tensor | None
    shape: torch.Size
    needs_weight: bool
    needs_bias: bool

    def wants_transposed(self, least: tuple[int, int, int]) -> bool:
        """True if the product with an operand of this layer is at least this large, and made in TF32."""
        if self.x.dtype != torch.float32 or not tf32_allowed():
            return False
        num_rows = self.x.shape[0]
        enough = all(size >= low for size, low in zip((num_rows, self.shape[1], self.shape[0]), least, strict=True))
        return enough and aligned(num_rows, self.x.dtype) == num_rows


class _Layers(torch.autograd.Function):
    """Keeps what was multiplied, which mostly is the output of the layer before, and the last output if a ReLU made it.

    It keeps nothing if there will be no backward pass (`keeps`), and nothing of layers that the backward pass does not
    reach.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        onto: Tensor | None,
        relus: Sequence[bool],
        dtype: torch.dtype,
        padded: bool,
        keeps: bool,
        *parameters: Tensor,
    ) -> Tensor:
        weights, biases = parameters[::2], parameters[1::2]
        padded_x = padded_rows(x, dtype) if padded and weights[0].shape[0] > 1 else None
        ctx.padded, ctx.relus, ctx.dtype = padded_x is not None, relus, dtype
        ctx.x_dtype, ctx.onto_dtype = x.dtype, None if onto is None else onto.dtype
        ctx.shapes, ctx.dtypes = [weight.shape for weight in weights], [tensor.dtype for tensor in parameters]
        ctx.lowest = _lowest(ctx.needs_input_grad) if keeps else len(relus)
        out = x if padded_x is None else padded_x
        inputs: list[Tensor | None] = []
        multiplied: list[Tensor | None] = []
        for number, (weight, bias, relu) in enumerate(zip(weights, biases, relus, strict=True)):
            if weight.shape[0] == 1:
                rows, weight = out.contiguous(), weight.contiguous()
                out = one_output.forward(rows, weight, bias, relu, dtype, onto if number == len(relus) - 1 else None)
            else:
                rows, weight, out = _multiply(out, weight, bias, relu, dtype)
            inputs.append(rows if number >= ctx.lowest else None)
            multiplied.append(weight if number >= ctx.lowest else None)
            del rows, weight
        ctx.save_for_backward(*inputs, *multiplied, out if relus[-1] else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needs_x, needs_onto, *_ = ctx.needs_input_grad
        layers, lowest = _saved(ctx), ctx.lowest
        parts = make_parts(grad, grad.shape[0], [_num_sums(shape) for shape in ctx.shapes])
        gradient = Gradient(grad.contiguous())
        weight_grads: list[Tensor | None] = [None] * len(layers)
        for number in reversed(range(lowest, len(layers))):
            layer = layers.pop()
            if layer.shape[0] == 1:
                gradient = _before_one_output(
                    gradient, layer, layers[-1] if number > lowest else None, number, parts, needs_x or number > lowest
                )
            else:
                gradient = _before_relu(gradient, layer, number, parts, needs_x or number > lowest)
                if layer.needs_weight:
                    weight_grads[number] = _grad_weight(gradient, layer, ctx.dtypes[2 * number])
                if needs_x or number > lowest:
                    gradient = Gradient(_grad_x(gradient, layer, ctx.dtype if number else ctx.x_dtype))
            del layer  # the next one can use its memory
        grad_x = None
        if needs_x:
            rows, width = gradient.rows, ctx.shapes[0][1]
            # The gradient of padded rows is padded too.
            grad_x = rows[:, :width] if ctx.padded else resized(rows, rows.shape[0], width, ctx.x_dtype)
        grad_onto = grad.to(ctx.onto_dtype) if needs_onto else None
        return grad_x, grad_onto, None, None, None, None, *_grad_parameters(ctx, weight_grads, parts)


def layers(
    x: Tensor,
    parameters: Sequence[Tensor],
    relus: Sequence[bool],
    dtype: torch.dtype,
    padded: bool = False,
    onto: Tensor | None = None,
) -> Tensor:
    """Apply layers one after the other. No tensor may be empty.

    Args:
        x: [B, K].
        parameters: weight and bias of the first layer, weight and bias of the second, and so on.
        onto: [B, 1], added to the output of a last layer that has one output and no ReLU.
    """
    given = [x, *parameters] if onto is None else [x, onto, *parameters]
    keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    out: Tensor = _Layers.apply(x, onto, tuple(relus), dtype, padded, keeps, *parameters)
    return out


def _multiply(x: Tensor, weight: Tensor, bias: Tensor, relu: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Multiply, and return x and the weight as they were multiplied, and the output."""
    num_outputs, num_inputs = weight.shape
    width = aligned(num_inputs, dtype)
    x = resized(x, x.shape[0], width, dtype)
    # The bias is resized too. Otherwise a pass of its own would add it.
    weight, bias = resized_layer(weight, bias, aligned(num_outputs, dtype), width, dtype)
    product = addmm_relu if relu else torch.addmm
    with with_room_beside_bias(x, weight.t()):
        out: Tensor = product(bias, x, weight[:num_outputs].t())
    return x, weight, out


def _saved(ctx: Any) -> list[_Layer]:
    """What the forward pass has kept. Nobody else keeps it from now on, unless there will be another backward pass."""
    count = len(ctx.shapes)
    *saved, last = [None if tensor is None else tensor.contiguous() for tensor in ctx.saved_tensors]
    if not torch.compiler.is_compiling():
        ctx.maybe_clear_saved_tensors()
    outs = [x if relu else None for x, relu in zip(saved[1:count], ctx.relus[:-1], strict=True)]
    needs = ctx.needs_input_grad[_FIRST:]
    return [
        _Layer(*given)
        for given in zip(saved[:count], saved[count:], [*outs, last], ctx.shapes, needs[::2], needs[1::2], strict=True)
    ]


def _lowest(needs: Sequence[bool]) -> int:
    """The first layer that the backward pass has to reach, from which of the operation's arguments need a gradient."""
    if needs[0]:
        return 0
    for position, need in enumerate(needs[_FIRST:]):
        if need:
            return position // 2
    return len(needs[_FIRST:]) // 2


def _num_sums(shape: torch.Size) -> int:
    """How many sums over the rows a layer has: its bias's gradient and, with one output, its weight's."""
    return shape[0] if shape[0] > 1 else one_output.num_sums(shape[1])


def _before_one_output(
    gradient: Gradient, layer: _Layer, before: _Layer | None, number: int, parts: Parts, needs_x: bool
) -> Gradient:
    """The gradient of the input of a layer with one output; if possible, that before the ReLU which made the input.

    Args:
        before: the layer that made the input, if the backward pass reaches it.
        number: of the layer.
    """
    masks = (
        before is not None
        and before.out is not None
        and before.shape[0] > 1
        and before.weight.shape[0] == before.shape[0]
        and not (before.needs_weight and before.wants_transposed(TRANSPOSE_GRADIENT))
    )
    transposes = before is not None and masks and before.wants_transposed(TRANSPOSE_WEIGHT)
    rows = one_output.backward(
        gradient.rows[:, :1].contiguous(),
        None if layer.out is None else layer.out[:, :1].contiguous(),
        layer.x,
        layer.weight,
        needs_x,
        parts,
        number,
        number - 1 if masks else None,
        before.weight if before is not None and transposes else None,
    )
    return gradient if rows is None else rows


def _before_relu(gradient: Gradient, layer: _Layer, number: int, parts: Parts, needs_x: bool) -> Gradient:
    """The gradient before the layer's ReLU, padded. Its sums go to the parts."""
    num_outputs, width = layer.shape[0], layer.weight.shape[0]
    if gradient.before_relu or not (layer.needs_bias or layer.out is not None or width != num_outputs):
        return gradient
    return mask_and_sum(
        gradient.rows,
        layer.out,
        num_outputs,
        width,
        parts,
        number,
        layer.needs_weight and layer.wants_transposed(TRANSPOSE_GRADIENT),
        layer.weight if needs_x and layer.wants_transposed(TRANSPOSE_WEIGHT) else None,
    )


def _grad_weight(gradient: Gradient, layer: _Layer, dtype: torch.dtype) -> Tensor:
    left = gradient.rows.t() if gradient.transposed is None else gradient.transposed
    return resized(_product(left, layer.x, dtype), layer.shape[0], layer.shape[1], dtype)


def _grad_x(gradient: Gradient, layer: _Layer, dtype: torch.dtype) -> Tensor:
    """The gradient of x, with the padding of x."""
    right = layer.weight if gradient.weight is None else gradient.weight.t()
    return _product(gradient.rows, right, dtype)


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """The product of two matrices. If `dtype` is float32 it is rounded only once, without a pass of its own."""
    # Types are chosen in the forward pass.
    with torch.autocast(left.device.type, enabled=False), with_room(left, right):
        if left.is_cuda and dtype == torch.float32 and left.dtype != dtype:
            return torch.mm(left, right, out_dtype=dtype)
        return torch.mm(left, right)


def _grad_parameters(ctx: Any, weight_grads: list[Tensor | None], parts: Parts) -> list[Tensor | None]:
    """The gradients of weights and biases in their order. One launch adds up all those that are sums over the rows."""
    found: list[Tensor | None] = []
    sums = None
    for number, (shape, grad) in enumerate(zip(ctx.shapes, weight_grads, strict=True)):
        needs_weight, needs_bias = ctx.needs_input_grad[_FIRST + 2 * number : _FIRST + 2 * number + 2]
        if needs_bias or (needs_weight and shape[0] == 1):
            sums = add(parts) if sums is None else sums
            of_layer = sums[parts.starts[number] : parts.starts[number] + _num_sums(shape)]
            if needs_weight and shape[0] == 1:
                grad = of_layer[: shape[1]].view(shape).to(ctx.dtypes[2 * number])
            bias = of_layer[-shape[0] :].to(ctx.dtypes[2 * number + 1])
        found += [grad, bias if needs_bias else None]
    return found
