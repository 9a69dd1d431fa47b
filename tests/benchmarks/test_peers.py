"""The peers and their common interface, as far as they can be tested without a GPU."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benchmarks.peers import PEERS, PeerMissing, cached_embedding, fbgemm, naive, smoke
from benchmarks.peers.registry import Entry
from torch import Tensor

CPU = torch.device("cpu")


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_naive_step_is_embedding_bags_with_torch_optim(optimizer: str) -> None:
    torch.manual_seed(0)
    sizes, dim, lr = [50, 3, 20], 8, 0.1
    bags = [torch.nn.EmbeddingBag(size, dim, mode="sum", sparse=True) for size in sizes]
    weights = [bag.weight for bag in bags]
    torch_optimizer = torch.optim.SGD(weights, lr=lr) if optimizer == "sgd" else torch.optim.SparseAdam(weights, lr=lr)
    peer = PEERS["naive"].make(sizes, dim, 0.1, optimizer, lr, 16, CPU)
    for i, weight in enumerate(weights):
        peer.load_weight(i, weight.detach())
    mix = torch.randn(len(sizes), dim)
    for _ in range(3):
        ids = torch.stack([torch.randint(size, (16,)) for size in sizes], dim=1)
        expected = torch.stack([bag(ids[:, i : i + 1]) for i, bag in enumerate(bags)], dim=1)
        embedded = peer.embed(ids)
        assert torch.equal(embedded, expected)
        (expected * mix).square().sum().backward()
        (embedded * mix).square().sum().backward()
        torch_optimizer.step()
        torch_optimizer.zero_grad()
        peer.step()
    for i, weight in enumerate(weights):
        torch.testing.assert_close(peer.weight(i), weight.detach())
    peer.close()


def test_naive_counts_what_it_copies() -> None:
    peer = naive.make([10, 10], 4, 0.1, "sgd", 0.1, 2, CPU, None)
    peer.embed(torch.tensor([[1, 1], [2, 2]]))
    assert peer.figures()["batches"] == 0
    peer.count(True)
    peer.embed(torch.tensor([[1, 1], [1, 2]]))
    assert peer.figures() == {"batches": 1, "lookups": 4, "unique": 3, "bytes_in": 64, "bytes_out": 64}


@pytest.fixture
def cuda_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CachedEmbedding uses CUDA functions everywhere. Its logic runs on any device."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(Tensor, "cuda", lambda self, *_: self)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self, *_: self)
    monkeypatch.setattr(Entry, "missing", lambda *_: None)


@pytest.mark.usefixtures("cuda_is_the_cpu")
@pytest.mark.parametrize("key", ["cached-embedding", "cached-embedding-sparse"])
def test_cached_embedding_trains_as_torch(key: str) -> None:
    try:
        cached_embedding.find()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    line = smoke.check(key, "sgd", CPU)
    assert line.startswith("ok"), line
    assert "hit_rate" in line


class FakeOperator:
    """Records the order of its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, indices: Tensor, offsets: Tensor) -> Tensor:
        self.calls.append(f"forward {indices.tolist()}")
        return torch.zeros(2, 3 * 4)

    def prefetch(self, indices: Tensor, offsets: Tensor, forward_stream: object) -> None:
        self.calls.append(f"prefetch {indices.tolist()}")
        assert offsets.tolist() == list(range(7))


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def enter(_: object) -> Iterator[None]:
        yield

    stream = SimpleNamespace(record_event=lambda: None, wait_event=lambda _: None, wait_stream=lambda _: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: stream)
    monkeypatch.setattr(torch.cuda, "stream", enter)
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: None)


@pytest.mark.usefixtures("streams")
def test_fbgemm_prefetches_after_the_forward_of_the_batch_before() -> None:
    operator = FakeOperator()
    peer = fbgemm.Fbgemm(fbgemm.MODES["fbgemm-lru-prefetch"], operator, 0, CPU)
    batches = [torch.arange(6).view(2, 3) + i * 10 for i in range(3)]
    for i, ids in enumerate(batches):
        if i + 1 < len(batches):
            peer.prefetch(batches[i + 1])
        assert peer.embed(ids).shape == (2, 3, 4)
    orders = [
        [0, 3, 1, 4, 2, 5],
        [10, 13, 11, 14, 12, 15],
        [20, 23, 21, 24, 22, 25],
    ]  # FBGEMM takes ids feature by feature
    assert operator.calls == [
        f"prefetch {orders[0]}",
        f"forward {orders[0]}",
        f"prefetch {orders[1]}",
        f"forward {orders[1]}",
        f"prefetch {orders[2]}",
        f"forward {orders[2]}",
    ]


@pytest.mark.usefixtures("streams")
def test_fbgemm_refuses_ids_that_were_not_prefetched() -> None:
    peer = fbgemm.Fbgemm(fbgemm.MODES["fbgemm-lru-prefetch"], FakeOperator(), 0, CPU)
    peer.prefetch(torch.arange(6).view(2, 3))
    peer.embed(torch.arange(6).view(2, 3))
    with pytest.raises(ValueError, match="not those that were prefetched"):
        peer.embed(torch.arange(6).view(2, 3))


def test_a_peer_that_is_missing_has_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOTROWS_PEERS", str(tmp_path))
    reason = PEERS["cached-embedding"].missing("sgd", CPU)
    assert reason is not None
    assert "pack_cached_embedding" in reason
    with pytest.raises(PeerMissing, match="pack_cached_embedding"):
        PEERS["cached-embedding"].make([10], 4, 0.5, "sgd", 0.1, 2, CPU)


def test_an_optimizer_that_a_peer_does_not_support_has_a_reason() -> None:
    reason = PEERS["cached-embedding"].missing("adam", CPU)
    assert reason is not None
    assert "not per row" in reason
    with pytest.raises(ValueError, match="known are sgd, adam"):
        PEERS["naive"].missing("adamw", CPU)
