"""The inputs of a Wide & Deep model: the deep part's input and the wide part's sum, in one pass over pooled rows."""

import torch
from torch import Tensor

from hotrows.dense.wide_deep_input import reference

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def wide_deep_input(
    dense: Tensor, embedded: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The dense features next to the features' vectors, and the wide part: the sum of all wide weights of a sample.

    A feature's wide weight is the last number of its row, and the numbers before it are its vector. On CUDA the deep
    input has the type that autocast asks for if it is on, and the wide sum then is float32. Gradients have the types of
    their inputs. Equal inputs give equal bits.

    Args:
        dense: [B, n].
        embedded: [B, F, D + 1].
        weight, bias: [1, n] and [1], of a linear layer over the dense features that is part of the wide sum.

    Returns:
        The deep input [B, n + F·D] and the wide sum [B]; differentiable once on CUDA. There the rows of the deep input
        may be further apart than they are long, with zeros between them, and `dense.linear` multiplies such rows
        without a copy.
    """
    if embedded.is_cuda:
        autocast = torch.is_autocast_enabled("cuda")
        dtype = torch.get_autocast_dtype("cuda") if autocast else embedded.dtype
        if _has_kernel(dense, embedded, weight, bias, autocast, dtype):
            from hotrows.dense.wide_deep_input import kernel

            wide_dtype = torch.float32 if autocast else embedded.dtype
            return kernel.wide_deep_input(dense, embedded, weight, bias, dtype, wide_dtype)
    return reference.wide_deep_input(dense, embedded, weight, bias)


def _has_kernel(
    dense: Tensor, embedded: Tensor, weight: Tensor | None, bias: Tensor | None, autocast: bool, dtype: torch.dtype
) -> bool:
    """True if the kernel takes these inputs. PyTorch takes all others, or raises and says what is wrong with them."""
    given = [dense, embedded, *(tensor for tensor in (weight, bias) if tensor is not None)]
    kinds = {tensor.dtype for tensor in given}
    return (
        (autocast or len(kinds) == 1)
        and all(kind in _DTYPES for kind in (*kinds, dtype))
        and all(tensor.device == embedded.device for tensor in given)
        and dense.ndim == 2
        and embedded.ndim == 3
        and dense.shape[0] == embedded.shape[0]
        and embedded.numel() > 0
        and embedded.shape[2] > 1
        and _is_layer(weight, bias, dense.shape[1])
    )


def _is_layer(weight: Tensor | None, bias: Tensor | None, num_dense: int) -> bool:
    if weight is None or bias is None:
        return weight is bias
    return num_dense > 0 and weight.shape == (1, num_dense) and bias.shape == (1,)
