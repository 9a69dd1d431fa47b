"""Synthetic data: the shapes of the papers, reproducible, with labels that can be learned."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hotrows.batch import Batch
from hotrows.data.drift import Drift
from hotrows.data.shapes import SHAPES
from hotrows.data.skew import Skew, cumulative_share
from hotrows.data.synthetic import SyntheticDataSet

BY_DRIFT = {drift: SyntheticDataSet("avazu", samples=3000, scale=0.001, drift=drift) for drift in (0.0, 0.3, 1.0)}
SMALL = BY_DRIFT[0.0]


def ids_of(batch: Batch) -> Tensor:
    assert isinstance(batch.ids, Tensor)
    return batch.ids


def assert_same(left: Batch, right: Batch) -> None:
    assert torch.equal(left.dense, right.dense)
    assert torch.equal(ids_of(left), ids_of(right))
    assert torch.equal(left.label, right.label)


def whole(batches: list[Batch]) -> Batch:
    return Batch(
        torch.cat([b.dense for b in batches]), torch.cat([ids_of(b) for b in batches]),
        torch.cat([b.label for b in batches]),
    )  # fmt: skip


def auc(score: Tensor, label: Tensor) -> float:
    ordered = label[score.argsort()].double()
    ranks = torch.arange(1, len(ordered) + 1).double()
    clicks = ordered.sum()
    return float(((ranks * ordered).sum() - clicks * (clicks + 1) / 2) / (clicks * (len(ordered) - clicks)))


@pytest.mark.parametrize(
    ("shape", "num_columns", "num_rows", "num_dense"),
    [("criteo-kaggle", 26, 33_762_577, 13), ("criteo-terabyte", 26, 187_767_399, 13), ("avazu", 13, 9_445_823, 8)],
)
def test_shapes(shape: str, num_columns: int, num_rows: int, num_dense: int) -> None:
    dataset = SyntheticDataSet(shape)
    assert len(dataset.schema.categorical) == num_columns
    assert sum(dataset.schema.tables.values()) == num_rows
    assert sum(dataset.num_samples(s) for s in ("train", "valid", "test")) == SHAPES[shape].num_samples
    batch = next(iter(dataset.loader("train", 2000)))
    assert batch.dense.shape == (2000, num_dense)
    assert batch.dense.dtype == batch.label.dtype == torch.float32
    assert ids_of(batch).shape == (2000, num_columns)
    assert ids_of(batch).dtype == torch.int64
    assert (ids_of(batch) >= 0).all()
    assert (ids_of(batch) < torch.tensor([c.num_ids for c in dataset.schema.categorical])).all()
    assert set(batch.label.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(("batch_size", "expected"), [(1024, 26), (2048, 21), (4096, 17), (8192, 13)])
def test_deduplication_keeps_what_heca_measured(batch_size: int, expected: int) -> None:
    dataset = SyntheticDataSet("criteo-kaggle")
    kept = []
    for number, batch in enumerate(dataset.loader("train", batch_size, shuffle=True)):
        kept.append(sum(len(column.unique()) for column in ids_of(batch).T) / ids_of(batch).numel())
        if (number + 1) * batch_size >= 32_768:
            break
    assert 100 * np.mean(kept) == pytest.approx(expected, abs=0.5)


@settings(deadline=None, max_examples=30)
@given(batch_size=st.integers(1, 1500), world_size=st.integers(1, 4), drift=st.sampled_from(list(BY_DRIFT)))
def test_samples_do_not_depend_on_batch_size_or_rank(batch_size: int, world_size: int, drift: float) -> None:
    dataset = BY_DRIFT[drift]
    expected = whole(list(dataset.loader("train", 3000)))
    loaders = [dataset.loader("train", batch_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert_same(whole([batch for loader in loaders for batch in loader]), expected)


@settings(deadline=None, max_examples=30)
@given(data=st.data(), batch_size=st.integers(1, 900), shuffle=st.booleans(), split=st.sampled_from(["train", "valid"]))
def test_resumes_at_the_exact_position(data: st.DataObject, batch_size: int, shuffle: bool, split: str) -> None:
    loader = SMALL.loader(split, batch_size, shuffle=shuffle, seed=5)
    loader.set_epoch(1)
    batches = iter(loader)
    for _ in range(data.draw(st.integers(0, len(loader)))):
        next(batches)
    state = loader.state_dict()
    rest = list(batches)
    resumed = SMALL.loader(split, batch_size, shuffle=shuffle, seed=5)
    resumed.load_state_dict(state)
    again = list(resumed)
    assert len(again) == len(rest)
    for left, right in zip(again, rest, strict=True):
        assert_same(left, right)


@pytest.mark.parametrize("samples", [10, 11, 12, 13, 1000, 2310])
def test_shuffling_permutes_by_seed_and_epoch(samples: int) -> None:
    dataset = SyntheticDataSet("avazu", samples=samples, scale=0.001)

    def samples_in_order(seed: int, epoch: int) -> list[tuple[float, ...]]:
        loader = dataset.loader("train", 100, shuffle=True, seed=seed)
        loader.set_epoch(epoch)
        return [tuple(row) for row in whole(list(loader)).dense.tolist()]

    straight = [tuple(row) for row in whole(list(dataset.loader("train", 100))).dense.tolist()]
    orders = [samples_in_order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == sorted(straight) for order in orders)
    assert samples_in_order(1, 1) == orders[-1]
    if samples > 100:
        assert len({tuple(order) for order in [straight, *orders]}) == 5


def test_a_state_of_another_data_set_is_refused() -> None:
    state = SMALL.loader("train", 10).state_dict()
    other = SyntheticDataSet("avazu", samples=3000, scale=0.001, seed=1)
    with pytest.raises(ValueError, match="data_seed was 0 and is 1"):
        other.loader("train", 10).load_state_dict(state)
    with pytest.raises(ValueError, match="split was 'train' and is"):
        SyntheticDataSet("avazu", samples=3000, scale=0.001).loader("valid", 10).load_state_dict(state)


def test_splits_and_seeds_have_other_samples() -> None:
    first = SMALL.samples("train", torch.arange(100))
    for other in (
        SMALL.samples("valid", torch.arange(100)),
        SMALL.samples("test", torch.arange(100)),
        SyntheticDataSet("avazu", samples=3000, scale=0.001, seed=1).samples("train", torch.arange(100)),
    ):
        assert not torch.equal(first.dense, other.dense)
    assert_same(first, SyntheticDataSet("avazu", samples=3000, scale=0.001).samples("train", torch.arange(100)))


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("seed", [0, 1])
def test_labels_mean_something(shape: str, seed: int) -> None:
    dataset = SyntheticDataSet(shape, seed=seed)
    numbers = torch.arange(60_000)
    label = dataset.samples("train", numbers).label
    probability = dataset.click_probability("train", numbers)
    rate = SHAPES[shape].click_rate
    assert label.mean().item() == pytest.approx(rate, rel=0.1)
    assert probability.mean().item() == pytest.approx(label.mean().item(), rel=0.05)
    assert 0.78 < auc(probability, label) < 0.85


def test_a_model_learns_from_the_ids() -> None:
    dataset = SyntheticDataSet("criteo-kaggle", samples=60_000, scale=0.001)
    train, test = (whole(list(dataset.loader(split, 4096))) for split in ("train", "test"))
    small = [f for f, c in enumerate(dataset.schema.categorical) if c.num_ids < 500]
    clicks = torch.zeros(len(test.label), dtype=torch.float64)
    for f in small:  # the model is a smoothed naive Bayes classifier
        shown = torch.bincount(ids_of(train)[:, f], minlength=500).double()
        clicked = torch.bincount(ids_of(train)[:, f], weights=train.label.double(), minlength=500)
        rate = (clicked + 5) / (shown + 20)
        clicks += torch.log(rate / (1 - rate))[ids_of(test)[:, f]]
    assert auc(clicks, test.label) > 0.6


def test_counts_are_what_is_drawn() -> None:
    for drift in (0.0, 0.25):
        dataset = SyntheticDataSet("criteo-kaggle", samples=70_000, scale=0.0005, drift=drift)
        ids = ids_of(whole(list(dataset.loader("train", 8192))))
        for f, (name, expected) in enumerate(dataset.counts().items()):
            found = torch.bincount(ids[:, f], minlength=len(expected))
            assert expected.shape == found.shape
            assert expected.sum().item() == pytest.approx(60_000, rel=0.2 if len(expected) > 1000 else 0.01)
            often = expected > 30
            deviations = (found - expected)[often] / expected[often].double().sqrt()
            assert deviations.abs().max() < 5.5, name
            assert expected.argmax() == 0 or drift


def test_drift_changes_the_popular_ids() -> None:
    def popular(dataset: SyntheticDataSet, split: str) -> set[int]:
        ids = ids_of(dataset.samples(split, torch.arange(5000)))[:, 2]
        return set(torch.bincount(ids).topk(100).indices.tolist())

    still = SyntheticDataSet("criteo-kaggle", samples=140_000, scale=0.01)
    drifting = SyntheticDataSet("criteo-kaggle", samples=140_000, scale=0.01, drift=0.1)
    kept_still = len(popular(still, "train") & popular(still, "test"))
    kept_drifting = len(popular(drifting, "train") & popular(drifting, "test"))
    assert kept_still > 75
    assert 20 < kept_drifting < 0.7 * kept_still  # a tenth of the ids drifts on each of six days


@given(num_ids=st.integers(1, 3000), share=st.floats(0.001, 1.0), day=st.integers(0, 30))
def test_every_day_each_id_has_one_rank(num_ids: int, share: float, day: int) -> None:
    drift = Drift([7, num_ids], share, torch.device("cpu"))
    ids = drift.ids_of_day(1, day)
    assert sorted(ids) == list(range(num_ids))
    ranks = torch.stack([torch.zeros(num_ids, dtype=torch.int64), torch.arange(num_ids)], dim=1)
    assert torch.equal(drift(ranks, torch.full((num_ids,), day))[:, 1], torch.from_numpy(ids))
    if day == 0:
        assert ids.tolist() == list(range(num_ids))


@given(
    num_ids=st.integers(1, 10**8),
    exponent=st.floats(0.1, 6.0) | st.just(1.0),
    offset=st.floats(0.01, 500.0),
)
def test_quantiles_rise_to_the_number_of_ids(num_ids: int, exponent: float, offset: float) -> None:
    quantiles = Skew(exponent, offset).quantiles(num_ids)
    assert quantiles[0] == 0
    assert quantiles[-1] == num_ids << 16
    assert (np.diff(quantiles) >= 0).all()
    shares = np.diff(cumulative_share(quantiles, np.arange(min(num_ids, 50) + 1)))
    assert (shares[:-1] - shares[1:] > -1e-3).all()  # ids are in order of falling frequency


@pytest.mark.gpu
def test_a_gpu_makes_the_same_samples() -> None:
    for name in SHAPES:
        cpu, gpu = (
            SyntheticDataSet(name, samples=100_000, seed=3, drift=0.2, device=device).loader(
                "train", 30_000, shuffle=True
            )
            for device in ("cpu", "cuda")
        )
        for left, right in zip(cpu, gpu, strict=True):
            assert ids_of(right).is_cuda
            assert_same(left, Batch(right.dense.cpu(), ids_of(right).cpu(), right.label.cpu()))
