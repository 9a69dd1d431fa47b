"""DeepFM: the terms that it sums."""

import pytest
import torch

from hotrows.models import DeepFM
from hotrows.models.deepfm import all_pairs


def test_all_pairs_against_the_plain_sum() -> None:
    vectors = torch.randn(6, 5, 3, dtype=torch.float64)
    expected = torch.zeros(6, dtype=torch.float64)
    for i in range(5):
        for j in range(i):
            expected += (vectors[:, i] * vectors[:, j]).sum(1)
    assert torch.allclose(all_pairs(vectors), expected)


@pytest.mark.parametrize("num_dense", [2, 0])
def test_deepfm_adds_three_terms(num_dense: int) -> None:
    model = DeepFM(num_dense, num_features=3, dim=4, hidden=(5,))
    dense, embedded = torch.randn(6, num_dense), torch.randn(6, 3, 5)
    vectors = embedded[:, :, :4]
    linear = embedded[:, :, 4].sum(1)
    if model.first_order is not None:
        linear = linear + dense @ model.first_order.weight[0] + model.first_order.bias
        assert model.dense_vectors is not None
        vectors = torch.cat([torch.einsum("bn,nd->bnd", dense, model.dense_vectors), vectors], 1)
    expected = linear + all_pairs(vectors) + model.deep(vectors.reshape(6, -1))[:, 0]
    assert torch.allclose(model(dense, embedded), expected, atol=1e-5)
