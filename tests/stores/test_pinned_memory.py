"""Host memory belongs to its owner, and is handed on only where that is asked for."""

import gc

import pytest
import torch

from hotrows.reproduce import PAPERS
from hotrows.reproduce.bench import Bench
from hotrows.reproduce.experiment import choose
from hotrows.stores import pinned_memory
from hotrows.stores.pinned_memory import host_bytes, memory_kept
from tests.reproduce.test_experiments import TINY

CPU = torch.device("cpu")


class Owner:
    pass


def test_kept_memory_goes_to_the_next_owner_that_needs_no_more() -> None:
    with memory_kept():
        first, second = Owner(), Owner()
        large, small = host_bytes(first, 1 << 20, CPU), host_bytes(second, 4096, CPU)
        addresses = large.data_ptr(), small.data_ptr()
        del first, second
        third, fourth, fifth = Owner(), Owner(), Owner()
        assert host_bytes(third, 1000, CPU).data_ptr() == addresses[1]  # the smallest that is enough
        assert host_bytes(fourth, 5000, CPU).data_ptr() == addresses[0]
        assert host_bytes(fifth, 1000, CPU).data_ptr() not in addresses
    assert pinned_memory._spare is None


def test_memory_is_the_owners_alone() -> None:
    owners = [Owner(), Owner()]
    with memory_kept():
        one, other = (host_bytes(owner, 4096, CPU).fill_(number) for number, owner in enumerate(owners))
        assert one.sum() == 0
        assert other.sum() == 4096
        assert one.numel() == 4096


@pytest.mark.parametrize(("paper", "name", "num_runs"), [("freqcache", "fig9", 7), ("heca", "fig7", 12)])
def test_the_runs_of_a_figure_share_their_memory(
    monkeypatch: pytest.MonkeyPatch, paper: str, name: str, num_runs: int
) -> None:
    made: list[int] = []
    original = pinned_memory._Block.__init__

    def make(block: pinned_memory._Block, num_bytes: int) -> None:
        made.append(num_bytes)
        original(block, num_bytes)

    monkeypatch.setattr(pinned_memory._Block, "__init__", make)
    (experiment,) = choose(PAPERS[paper].experiments, [name], paper)
    bench = Bench(TINY[paper], "cpu")
    gc.collect()
    with torch.random.fork_rng(), memory_kept():
        experiment.run(bench)
    assert len(bench._trained) == num_runs
    assert len(made) == 1
