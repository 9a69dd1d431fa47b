"""Linear layers, each with or without a ReLU after it: x·Wᵀ + b, and zero where that is negative."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hotrows.dense.linear import reference

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Layer(NamedTuple):
    """One linear layer.

    Args:
        weight: [outputs, inputs].
        bias: [outputs].
        relu: True if a ReLU follows.
    """

    weight: Tensor
    bias: Tensor
    relu: bool


def linear_layers(x: Tensor, layers: Sequence[Layer], *, padded: bool = False, onto: Tensor | None = None) -> Tensor:
    """The output of `nn.Linear` modules applied one after the other, some with an `nn.ReLU`, with `onto` added to it.

    On CUDA bias and ReLU are part of the matrix product, one pass over a layer's gradient applies the ReLU's gradient
    and sums up the bias's gradient, and sizes for which cuBLAS has only slow kernels are padded with zeros. Products
    have the type that autocast asks for if it is on, else the inputs' type; float32 products have the precision that is
    set for CUDA matrix products. Gradients have the types of their inputs. Equal inputs give equal bits.

    Args:
        x: [..., inputs].
        layers: at least one.
        padded: the rows of x are as far apart as `padding.aligned` says, with zeros between them. Then they are
            multiplied without a copy, and the rows of x's gradient are as far apart. Otherwise x is copied into such
            rows.
        onto: [..., outputs]. Adding it takes no pass of its own if there is one output and no ReLU.

    Returns:
        [..., outputs]; differentiable once on CUDA.
    """
    if x.is_cuda:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        if _have_kernels(x, layers, dtype):
            from hotrows.dense.linear import kernel

            shape = (*x.shape[:-1], layers[-1].weight.shape[0])
            fused = None if onto is None or layers[-1].relu or not _can_add(onto, shape, x.device) else onto
            parameters = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
            out = kernel.layers(
                x.flatten(0, -2),
                parameters,
                [layer.relu for layer in layers],
                dtype,
                padded,
                None if fused is None else fused.flatten(0, -2),
            ).view(shape)
            return out if onto is None or fused is not None else out + onto
    return reference.linear_layers(x, layers, onto)


def _have_kernels(x: Tensor, layers: Sequence[Layer], dtype: torch.dtype) -> bool:
    """True if the kernels take these inputs. PyTorch takes all others, or raises and says what is wrong with them."""
    given = [x, *(tensor for layer in layers for tensor in (layer.weight, layer.bias))]
    kinds = {tensor.dtype for tensor in given}
    if not (
        (torch.is_autocast_enabled("cuda") or len(kinds) == 1)
        and all(kind in _DTYPES for kind in (*kinds, dtype))
        and x.ndim >= 2
        and all(tensor.device == x.device and tensor.numel() > 0 for tensor in given)
    ):
        return False
    width = x.shape[-1]
    for weight, bias, _ in layers:
        if weight.ndim != 2 or weight.shape[1] != width or bias.shape != weight.shape[:1]:
            return False
        width = weight.shape[0]
    return True


def _can_add(onto: Tensor, shape: tuple[int, ...], device: torch.device) -> bool:
    """True if the kernel for one output can add `onto`."""
    return shape[-1] == 1 and onto.shape == shape and onto.dtype in _DTYPES and onto.device == device
