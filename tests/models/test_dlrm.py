"""DLRM: the pairs of features, and the layers of the papers."""

import math

import pytest
import torch
from torch import nn

from hotrows.models import DLRM, make_model


def sizes(layers: nn.Module) -> list[int]:
    linears = [layer for layer in layers.modules() if isinstance(layer, nn.Linear)]
    return [linears[0].in_features, *(layer.out_features for layer in linears)]


@pytest.mark.parametrize(
    ("name", "dim", "bottom", "top"),
    [
        ("freqcache", 128, [512, 256, 128], [1024, 1024, 512, 256, 1]),
        ("cdlrm", 64, [512, 256, 64], [512, 512, 256, 1]),
        ("cdlrm-mlperf", 128, [512, 256, 128], [1024, 1024, 512, 256, 1]),
        ("rmc2", 16, [512, 256, 64, 16], [512, 256, 1]),
        ("rmc3", 64, [512, 256, 64], [512, 512, 256, 1]),
    ],
)
def test_the_papers_layers(name: str, dim: int, bottom: list[int], top: list[int]) -> None:
    model = make_model(f"dlrm:{name}", num_dense=13, num_features=26)
    assert isinstance(model, DLRM)
    assert isinstance(model.bottom, nn.Module)
    assert model.embedding_dim == dim
    assert sizes(model.bottom) == [13, *bottom]
    assert sizes(model.top) == [27 * 26 // 2 + dim, *top]


def test_another_dim_changes_the_last_bottom_layer() -> None:
    model = make_model("dlrm:freqcache", 13, 26, dim=8)
    assert isinstance(model, DLRM)
    assert isinstance(model.bottom, nn.Module)
    assert sizes(model.bottom) == [13, 512, 256, 8]


@pytest.mark.parametrize("num_dense", [3, 0])
def test_every_pair_once(num_dense: int) -> None:
    """The logits equal those of a loop over pairs, in the order of the reference: (1,0), (2,0), (2,1), (3,0), …"""
    model = DLRM(num_dense, num_features=4, dim=5, bottom=(7,), top=(6,))
    dense, embedded = torch.randn(8, num_dense), torch.randn(8, 4, 5)
    logits = model(dense, embedded)
    for sample in range(8):
        vectors = list(embedded[sample])
        inputs: list[torch.Tensor] = []
        if model.bottom is not None:
            summary = model.bottom(dense[sample : sample + 1])[0]
            vectors.insert(0, summary)
            inputs.append(summary)
        for i in range(len(vectors)):
            for j in range(i):
                inputs.append((vectors[i] * vectors[j]).sum().reshape(1))
        assert torch.allclose(model.top(torch.cat(inputs)), logits[sample], atol=1e-5)


def test_initial_weights_of_the_reference() -> None:
    torch.manual_seed(0)
    model = DLRM(13, 26, dim=16, top=(1000, 1000))
    layer = model.top[2]
    assert isinstance(layer, nn.Linear)
    assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / 2000), rel=0.02)
    assert layer.bias.std().item() == pytest.approx(math.sqrt(1 / 1000), rel=0.1)
    assert abs(layer.weight.mean().item()) < 1e-3
