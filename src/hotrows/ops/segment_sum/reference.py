"""Segment sum in plain PyTorch: an `embedding_bag` over gradients, in which each row's lookups are one bag."""

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag


def segment_sum(
    grad: Tensor,
    order: Tensor,
    starts: Tensor,
    num: Tensor,
    bag_of: Tensor | None,
    scale: Tensor | None,
    winner: Tensor | None,
) -> Tensor:
    if grad.dtype == torch.bfloat16:
        grad = grad.float()
    num_rows = int(num)
    starts = starts[: num_rows + 1]
    if num_rows == 0:
        return grad.new_zeros(0, grad.shape[1])
    order = order[: int(starts[-1])]
    bags = order if bag_of is None else bag_of[order]
    if winner is not None:
        grad = torch.where(winner[bags] == order.unsqueeze(1), grad[bags], 0.0)
        bags = torch.arange(order.numel(), dtype=torch.int32, device=grad.device)
    weights = None if scale is None else scale[order]
    return embedding_bag(bags, grad, starts, mode="sum", per_sample_weights=weights, include_last_offset=True)
