"""Linear layers in cuBLAS and Triton: the products of matrices by cuBLAS, what is passed over in memory by Triton.

Layers that follow each other are one operation, so that one launch can do what several of them want.
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
from hotrows.dense.linear.padding import aligned, whole_rows
from hotrows.dense.linear.room import with_room, with_room_beside_bias
from hotrows.dense.tf32 import tf32_allowed

# B, K and N from which on a product in TF32 wins more by a turned operand than it takes to turn it.
TURN_GRADIENT = (1024, 448, 448)
TURN_WEIGHT = (8192, 256, 256)

_FIRST = 6  # argument of the operation that is a layer's parameter


class _Layer(NamedTuple):
    """What the backward pass needs of a layer.

    Args:
        x, weight: as they were multiplied, [B, K] and [N, K] with their padding.
        out: its answer, perhaps with padding, if a ReLU made it.
        shape: of the weight as it was given.
        needs_weight, needs_bias: whether their gradients are wanted.
    """

    x: Tensor
    weight: Tensor
    out: Tensor | None
    shape: torch.Size
    needs_weight: bool
    needs_bias: bool

    def wants_turned(self, least: tuple[int, int, int]) -> bool:
        """Whether the product with an operand of this layer is so large, and made in TF32."""
        if self.x.dtype != torch.float32 or not tf32_allowed():
            return False
        num_rows = self.x.shape[0]
        enough = all(size >= low for size, low in zip((num_rows, self.shape[1], self.shape[0]), least, strict=True))
        return enough and aligned(num_rows, self.x.dtype) == num_rows


class _Layers(torch.autograd.Function):
    """Keeps what was multiplied, mostly what the layer before has answered, and the last answer if a ReLU made it.

    Nothing where there will be no backward pass (`keeps`), and nothing of layers that it does not come to.
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
        whole = whole_rows(x, dtype) if padded and weights[0].shape[0] > 1 else None
        ctx.padded, ctx.relus, ctx.dtype = whole is not None, relus, dtype
        ctx.x_dtype, ctx.onto_dtype = x.dtype, None if onto is None else onto.dtype
        ctx.shapes, ctx.dtypes = [weight.shape for weight in weights], [tensor.dtype for tensor in parameters]
        ctx.lowest = _lowest(ctx.needs_input_grad) if keeps else len(relus)
        out = x if whole is None else whole
        inputs: list[Tensor | None] = []
        multiplied: list[Tensor | None] = []
        for place, (weight, bias, relu) in enumerate(zip(weights, biases, relus, strict=True)):
            if weight.shape[0] == 1:
                rows, weight = out.contiguous(), weight.contiguous()
                out = one_output.forward(rows, weight, bias, relu, dtype, onto if place == len(relus) - 1 else None)
            else:
                rows, weight, out = _multiplied(out, weight, bias, relu, dtype)
            inputs.append(rows if place >= ctx.lowest else None)
            multiplied.append(weight if place >= ctx.lowest else None)
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
        for place in reversed(range(lowest, len(layers))):
            layer = layers.pop()
            if layer.shape[0] == 1:
                gradient = _before_one_output(
                    gradient, layer, layers[-1] if place > lowest else None, place, parts, needs_x or place > lowest
                )
            else:
                gradient = _before_relu(gradient, layer, place, parts, needs_x or place > lowest)
                if layer.needs_weight:
                    weight_grads[place] = _grad_weight(gradient, layer, ctx.dtypes[2 * place])
                if needs_x or place > lowest:
                    gradient = Gradient(_grad_x(gradient, layer, ctx.dtype if place else ctx.x_dtype))
            del layer  # its memory is free for what the next one needs
        grad_x = None
        if needs_x:
            rows, width = gradient.rows, ctx.shapes[0][1]
            # rows that came padded go back padded
            grad_x = rows[:, :width] if ctx.padded else resized(rows, rows.shape[0], width, ctx.x_dtype)
        grad_onto = grad.to(ctx.onto_dtype) if needs_onto else None
        return grad_x, grad_onto, None, None, None, None, *_of_parameters(ctx, weight_grads, parts)


def layers(
    x: Tensor,
    parameters: Sequence[Tensor],
    relus: Sequence[bool],
    dtype: torch.dtype,
    padded: bool = False,
    onto: Tensor | None = None,
) -> Tensor:
    """x is [B, K], nothing is empty; `onto` is [B, 1], for a last layer of one output without a ReLU.

    Args:
        parameters: weight and bias of the first layer, weight and bias of the second, and so on.
    """
    given = [x, *parameters] if onto is None else [x, onto, *parameters]
    keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    out: Tensor = _Layers.apply(x, onto, tuple(relus), dtype, padded, keeps, *parameters)
    return out


def _multiplied(
    x: Tensor, weight: Tensor, bias: Tensor, relu: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """x and the weight as they are multiplied, and the answer."""
    num_outputs, num_inputs = weight.shape
    width = aligned(num_inputs, dtype)
    x = resized(x, x.shape[0], width, dtype)
    # the bias too, else it would be added by a pass of its own
    weight, bias = resized_layer(weight, bias, aligned(num_outputs, dtype), width, dtype)
    product = torch._addmm_activation if relu else torch.addmm
    with with_room_beside_bias(x, weight.t()):
        out: Tensor = product(bias, x, weight[:num_outputs].t())
    return x, weight, out


def _saved(ctx: Any) -> list[_Layer]:
    """What the forward pass has kept; now nobody else keeps it, unless there is to be another backward pass."""
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
    """The first layer that the backward pass has to come to, by which of the operation's arguments need a gradient."""
    if needs[0]:
        return 0
    for place, need in enumerate(needs[_FIRST:]):
        if need:
            return place // 2
    return len(needs[_FIRST:]) // 2


def _num_sums(shape: torch.Size) -> int:
    """How many sums over the rows a layer has: its bias's gradient, and the weight's where there is one output."""
    return shape[0] if shape[0] > 1 else one_output.num_sums(shape[1])


def _before_one_output(
    gradient: Gradient, layer: _Layer, before: _Layer | None, place: int, parts: Parts, needs_x: bool
) -> Gradient:
    """The gradient of the input of a layer of one output, or if possible that before the ReLU which made the input.

    Args:
        before: the layer that made it, if the backward pass goes on to that.
    """
    masks = (
        before is not None
        and before.out is not None
        and before.shape[0] > 1
        and before.weight.shape[0] == before.shape[0]
        and not (before.needs_weight and before.wants_turned(TURN_GRADIENT))
    )
    turns = before is not None and masks and before.wants_turned(TURN_WEIGHT)
    rows = one_output.backward(
        gradient.rows[:, :1].contiguous(),
        None if layer.out is None else layer.out[:, :1].contiguous(),
        layer.x,
        layer.weight,
        needs_x,
        parts,
        place,
        place - 1 if masks else None,
        before.weight if before is not None and turns else None,
    )
    return gradient if rows is None else rows


def _before_relu(gradient: Gradient, layer: _Layer, place: int, parts: Parts, needs_x: bool) -> Gradient:
    """The gradient before the layer's ReLU, padded, its sums among the parts."""
    num_outputs, width = layer.shape[0], layer.weight.shape[0]
    if gradient.before_relu or not (layer.needs_bias or layer.out is not None or width != num_outputs):
        return gradient
    return mask_and_sum(
        gradient.rows,
        layer.out,
        num_outputs,
        width,
        parts,
        place,
        layer.needs_weight and layer.wants_turned(TURN_GRADIENT),
        layer.weight if needs_x and layer.wants_turned(TURN_WEIGHT) else None,
    )


def _grad_weight(gradient: Gradient, layer: _Layer, dtype: torch.dtype) -> Tensor:
    left = gradient.rows.t() if gradient.turned is None else gradient.turned
    return resized(_product(left, layer.x, dtype), layer.shape[0], layer.shape[1], dtype)


def _grad_x(gradient: Gradient, layer: _Layer, dtype: torch.dtype) -> Tensor:
    """With the padding of x."""
    right = layer.weight if gradient.weight is None else gradient.weight.t()
    return _product(gradient.rows, right, dtype)


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Of two matrices, written as float32 where that is asked for: rounded once, and no pass more."""
    # the types are those of the forward pass
    with torch.autocast(left.device.type, enabled=False), with_room(left, right):
        if left.is_cuda and dtype == torch.float32 and left.dtype != dtype:
            return torch.mm(left, right, out_dtype=dtype)
        return torch.mm(left, right)


def _of_parameters(ctx: Any, weight_grads: list[Tensor | None], parts: Parts) -> list[Tensor | None]:
    """The gradients of weights and biases in their order, those that are sums over the rows added up in one launch."""
    found: list[Tensor | None] = []
    sums = None
    for place, (shape, grad) in enumerate(zip(ctx.shapes, weight_grads, strict=True)):
        needs_weight, needs_bias = ctx.needs_input_grad[_FIRST + 2 * place : _FIRST + 2 * place + 2]
        if needs_bias or (needs_weight and shape[0] == 1):
            sums = add(parts) if sums is None else sums
            of_layer = sums[parts.starts[place] : parts.starts[place] + _num_sums(shape)]
            if needs_weight and shape[0] == 1:
                grad = of_layer[: shape[1]].view(shape).to(ctx.dtypes[2 * place])
            bias = of_layer[-shape[0] :].to(ctx.dtypes[2 * place + 1])
        found += [grad, bias if needs_bias else None]
    return found
