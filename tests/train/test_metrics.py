"""AUC, log loss and accuracy, against their definitions."""

import math

import pytest
import torch

from hotrows.train.metrics import ClickMetrics


def test_against_the_definitions() -> None:
    random = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(500, generator=random), torch.randint(0, 2, (500,), generator=random).float()
    metrics = ClickMetrics()
    metrics.add(logits[:200], labels[:200])
    metrics.add(logits[200:], labels[200:])
    found = metrics.result()
    assert found is not None
    positive, negative = logits[labels == 1], logits[labels == 0]
    wins = (positive[:, None] > negative[None, :]).double() + 0.5 * (positive[:, None] == negative[None, :])
    assert found["auc"] == pytest.approx(float(wins.mean()), abs=1e-6)
    probability = torch.sigmoid(logits.double())
    entropy = -(labels * probability.log() + (1 - labels) * (1 - probability).log()).mean()
    assert found["logloss"] == pytest.approx(float(entropy), abs=1e-9)
    assert found["accuracy"] == pytest.approx(float(((logits > 0) == (labels == 1)).float().mean()))


def test_a_single_class_has_no_auc() -> None:
    metrics = ClickMetrics()
    metrics.add(torch.zeros(3), torch.ones(3))
    found = metrics.result()
    assert found is not None
    assert math.isnan(found["auc"])
    assert ClickMetrics().result() is None
