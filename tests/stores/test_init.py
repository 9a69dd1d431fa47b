"""Initial values depend on seed, table and id alone."""

import math

import pytest
import torch

import hotrows
from hotrows.stores.init import initial_values, table_key

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def values(init: object = "uniform", ids: torch.Tensor | None = None, key: int | None = None) -> torch.Tensor:
    ids = torch.arange(20_000) if ids is None else ids
    return initial_values(init, ids, 8, 20_000, table_key(0, "a") if key is None else key)


@pytest.mark.parametrize("init", ["uniform", "normal", "uniform(0.3)", "normal(0.3)"])
@pytest.mark.parametrize("device", DEVICES)
def test_the_same_in_any_order_and_on_any_device(init: str, device: str) -> None:
    ids = torch.tensor([7, 19_999, 0, 7])
    assert torch.equal(values(init, ids.to(device)).cpu(), values(init)[ids])


def test_uniform_is_uniform() -> None:
    found = values() * math.sqrt(20_000)
    assert -1 <= found.min() < -0.999
    assert 0.999 < found.max() <= 1
    assert abs(float(found.mean())) < 0.01
    assert abs(float(found.var()) - 1 / 3) < 0.01
    assert abs(float(torch.corrcoef(found.T)[0, 1])) < 0.03
    assert abs(float(torch.corrcoef(torch.stack([found[1:, 0], found[:-1, 0]]))[0, 1])) < 0.03


def test_normal_is_normal() -> None:
    found = values("normal")
    assert abs(float(found.mean())) < 0.01
    assert abs(float(found.std()) - 1) < 0.01
    assert abs(float((found.abs() < 1).float().mean()) - 0.6827) < 0.01


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_a_number_scales_the_values(distribution: str) -> None:
    named = values(distribution) * (math.sqrt(20_000) if distribution == "uniform" else 1)
    torch.testing.assert_close(values(f"{distribution}(2.5e-1)"), 0.25 * named)
    assert values(f"{distribution}(0)").count_nonzero() == 0


@pytest.mark.parametrize("init", ["gauss", "uniform()", "uniform(-1)", "normal(x)", "normal(1e999)", "normal(.)", 3])
def test_other_texts_are_refused(init: object) -> None:
    with pytest.raises(ValueError, match=r"init is .*: give one of uniform, normal, uniform\(0.1\), normal\(0.1\), or"):
        hotrows.EmbeddingBagCollection([hotrows.Table("a", 9, init=init)], 4, cache=9)  # type: ignore[arg-type]


def test_seed_and_table_matter() -> None:
    keys = {table_key(0, "a"), table_key(1, "a"), table_key(0, "b")}
    assert len(keys) == 3
    first, *others = [values(key=key) for key in keys]
    assert not any(torch.equal(first, other) for other in others)


def test_a_function_is_asked() -> None:
    def mine(ids: torch.Tensor, dim: int) -> torch.Tensor:
        return ids.unsqueeze(1).expand(-1, dim) * 0.5

    assert torch.equal(values(mine, torch.tensor([4, 2]))[:, 0], torch.tensor([2.0, 1.0]))
    with pytest.raises(ValueError, match=r"answered \(2, 9\), expected a tensor of shape \(2, 8\)"):
        values(lambda ids, dim: torch.zeros(2, 9), torch.tensor([4, 2]))
