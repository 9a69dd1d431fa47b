"""The cross layers against the formulas of the papers."""

import pytest
import torch

from hotrows.models import DCN
from hotrows.models.dcn import MatrixCross, VectorCross


def test_vector_cross() -> None:
    layer = VectorCross(5).double()
    torch.nn.init.normal_(layer.bias)
    first, x = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    for sample, out in enumerate(layer(first, x)):
        outer = torch.outer(first[sample], x[sample])  # x0 xᵀ w + b + x
        assert torch.allclose(out, outer @ layer.weight + layer.bias + x[sample])


@pytest.mark.parametrize("rank", [None, 2])
def test_matrix_cross(rank: int | None) -> None:
    layer = MatrixCross(5, rank).double()
    first, x = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    matrix = layer.weight.weight if layer.narrow is None else layer.weight.weight @ layer.narrow.weight
    for sample, out in enumerate(layer(first, x)):
        assert torch.allclose(out, first[sample] * (matrix @ x[sample] + layer.weight.bias) + x[sample])


def test_two_layers_make_a_polynomial_of_degree_three() -> None:
    """As a function of a factor t on the inputs, the fourth differences of a cubic are zero and the third are not."""
    torch.manual_seed(0)
    model = DCN(2, 3, dim=2, num_cross=2, hidden=(4,)).double()
    torch.nn.init.zeros_(model.last.weight[:, -4:])  # without the deep part
    dense, embedded = torch.randn(1, 2, dtype=torch.float64), torch.randn(1, 3, 2, dtype=torch.float64)
    values = torch.stack([model(t * dense, t * embedded) for t in range(6)])
    assert values.diff(n=3, dim=0).abs().min() > 1e-6
    assert torch.allclose(values.diff(n=4, dim=0), torch.zeros((), dtype=torch.float64), atol=1e-9)
