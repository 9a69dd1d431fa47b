"""On a GPU the training loop never waits: not for a count, not for an id check, not for a copy."""

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

import hotrows


@pytest.fixture
def no_synchronization() -> Iterator[Callable[[], None]]:
    """From the call on, whatever waits for the device raises."""

    def forbid() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that it may overlook some
            torch.cuda.set_sync_debug_mode("error")

    yield forbid
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["single", "jagged"])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("policy", sorted(hotrows.POLICIES))
@pytest.mark.parametrize("index", sorted(hotrows.INDEXES))
def test_the_loop_does_not_synchronize(
    index: str, policy: str, where: str, kind: str, no_synchronization: Callable[[], None]
) -> None:
    random = torch.Generator().manual_seed(0)
    sizes = (20_000, 5_000, 300)
    bags = hotrows.EmbeddingBagCollection(
        [hotrows.Table(f"t{i}", size) for i, size in enumerate(sizes)],
        dim=16,
        cache="20%",
        policy=policy,
        index=index,
        optimizer=hotrows.optim.Adam(lr=0.01),
        device="cuda",
    )
    head = torch.nn.Linear(3 * 16, 1, device="cuda")
    data: list[torch.Tensor | hotrows.Jagged] = []
    for _ in range(24):
        ids = torch.stack([(torch.rand(64, generator=random).pow(3) * size).long() for size in sizes])
        if kind == "jagged":
            data.append(hotrows.Jagged(ids.flatten(), torch.ones(3, 64, dtype=torch.int64)).to(where))
        else:
            data.append(ids.T.contiguous().to(where))

    def train(ids: torch.Tensor | hotrows.Jagged) -> None:
        head(bags(ids).flatten(1)).square().sum().backward()

    for ids in hotrows.lookahead(data, bags, depth=3, window=8, ids=lambda ids: ids):
        train(ids)  # kernels are compiled here
    torch.cuda.synchronize()
    no_synchronization()
    for ids in hotrows.lookahead(data, bags, depth=3, window=8, ids=lambda ids: ids):
        train(ids)
    for ids in data[:4]:
        train(ids)  # planned on the spot
    torch.cuda.set_sync_debug_mode("default")
    assert bags.stats().batches == 2 * len(data) + 4
    assert bags.stats().overflow == 0
