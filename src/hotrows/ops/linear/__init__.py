"""A linear layer with the ReLU after it: x·Wᵀ + b, and zero where that is negative."""

import torch
from torch import Tensor

from hotrows.ops.linear import reference

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor, relu: bool, *, padded: bool = False, onto: Tensor | None = None
) -> Tensor:
    """What `nn.Linear` gives, `nn.ReLU` after it where `relu` is set, and `onto` added to it.

    On CUDA the bias and the ReLU are part of the matrix product, one pass over the gradient undoes the ReLU and sums up
    the bias's gradient, and sizes that would keep the products off the fast kernels are padded with zeros. Products are
    of the type that autocast asks for where it is on, else of the inputs' type; float32 ones have the precision that is
    set for CUDA matrix products. Gradients have the types of their inputs. Equal inputs give equal bits.

    Args:
        x: [..., inputs].
        weight: [outputs, inputs].
        bias: [outputs].
        padded: between the rows of x, if they are as far apart as `padding.aligned` says, there are zeros: they are
            multiplied as they are, and x's gradient has rows as far apart. Without it x is copied into such rows.
        onto: [..., outputs]; no pass of its own where there is one output and no ReLU.

    Returns:
        [..., outputs]; differentiable once on CUDA.
    """
    if x.is_cuda:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        if _has_kernel(x, weight, bias, dtype):
            from hotrows.ops.linear import kernel

            shape = (*x.shape[:-1], weight.shape[0])
            here = None if onto is None or relu or not _is_added(onto, shape, x.device) else onto.flatten(0, -2)
            out = kernel.linear(x.flatten(0, -2), weight, bias, relu, dtype, padded, here).view(shape)
            return out if onto is None or here is not None else out + onto
    return reference.linear(x, weight, bias, relu, onto)


def _has_kernel(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> bool:
    """Whatever is not as it should be goes to PyTorch, which tells what is wrong with it."""
    given = (x, weight, bias)
    kinds = {tensor.dtype for tensor in given}
    return (
        (torch.is_autocast_enabled("cuda") or len(kinds) == 1)
        and all(kind in _DTYPES for kind in (*kinds, dtype))
        and x.ndim >= 2
        and weight.ndim == 2
        and x.shape[-1] == weight.shape[1]
        and bias.shape == weight.shape[:1]
        and all(tensor.device == x.device and tensor.numel() > 0 for tensor in given)
    )


def _is_added(onto: Tensor, shape: tuple[int, ...], device: torch.device) -> bool:
    """Whether the kernel for one output can add it."""
    return shape[-1] == 1 and onto.shape == shape and onto.dtype in _DTYPES and onto.device == device
