"""The whole profile on data sets in memory: figures, JSON, table and picture."""

import io
import json
from pathlib import Path

import pytest
import torch

import hotrows
from hotrows.data.schema import Column
from hotrows.profile import Profile, plot, profile, show
from tests.profile.memory_dataset import MemoryDataSet

ROWS = (3000, 400, 5)


def skewed(num_samples: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return (torch.rand(num_samples, len(ROWS), generator=random).pow(5) * torch.tensor(ROWS)).long()


@pytest.fixture(scope="module")
def data() -> MemoryDataSet:
    return MemoryDataSet.of(skewed(20_000), ROWS)


@pytest.fixture(scope="module")
def found(data: MemoryDataSet) -> Profile:
    return profile(data, batch_size=1000)


def test_deduplication_against_sets(found: Profile) -> None:
    ids = skewed(20_000)
    assert list(found.deduplication) == [1024, 2048, 4096, 8192]
    for size, share in found.deduplication.items():
        # The profile reads blocks of 9000 samples and uses only whole batches of each.
        batches = [
            block[first : first + size] for block in ids.split(9000) for first in range(0, len(block) - size + 1, size)
        ]
        kept = sum(len({(f, id) for sample in b.tolist() for f, id in enumerate(sample)}) for b in batches)
        assert share == pytest.approx(kept / sum(b.numel() for b in batches))


def test_misses_against_the_simulator(found: Profile) -> None:
    rows = skewed(20_000) + torch.tensor([0, 3000, 3400])
    assert len(found.miss_ratio) >= 8
    for capacity, share in found.miss_ratio.items():
        simulated = hotrows.simulate(rows.split(1000), policy="lru", capacity=capacity)
        assert share == pytest.approx(1 - simulated.hit_rate, abs=0.02)


def test_columns(found: Profile, data: MemoryDataSet) -> None:
    counts = data.counts()["c0"].sort(descending=True).values.double()
    column = found.to_json()["columns"][0]
    assert (column["name"], column["table"], column["rows"], column["accesses"]) == ("c0", "c0", 3000, 20_000)
    assert column["top"] == {
        "0.001": pytest.approx(float(counts[:3].sum() / 20_000)),
        "0.01": pytest.approx(float(counts[:30].sum() / 20_000)),
        "0.1": pytest.approx(float(counts[:300].sum() / 20_000)),
    }
    assert found.to_json()["all"]["rows"] == sum(ROWS)


def test_json_comes_back_as_it_was(found: Profile) -> None:
    assert json.loads(json.dumps(found.to_json())) == found.to_json()


def test_sequences_and_shared_tables() -> None:
    """Two columns look up in one table, so an id that both have is one row."""
    columns = (Column("user", 10), Column("clicked", 50, "item", max_length=3), Column("item", 50))
    bags = [[[i % 10], [i % 50, (i + 1) % 50][: i % 3], [(i + 1) % 50]] for i in range(3000)]
    found = profile(MemoryDataSet(columns, bags), batch_size=100)
    batches = [bags[first : first + 1024] for first in range(0, 2048, 1024)]
    kept = lookups = 0
    for batch in batches:
        pooled = [(columns[f].table, id) for sample in batch for f, bag in enumerate(sample) for id in bag]
        kept, lookups = kept + len(set(pooled)), lookups + len(pooled)
    assert found.deduplication[1024] == pytest.approx(kept / lookups)
    assert [column.skew.num_ids for column in found.columns] == [10, 50, 50]
    assert found.pooled.num_ids == 60
    assert found.curve.fewest == pytest.approx(60 / sum(_unique(bags[i : i + 100]) for i in range(0, 3000, 100)))


def _unique(bags: list[list[list[int]]]) -> int:
    return len({(f > 0, id) for sample in bags for f, bag in enumerate(sample) for id in bag})


def test_reads_no_more_than_asked(data: MemoryDataSet) -> None:
    progress: list[tuple[str, float]] = []
    found = profile(data, batch_size=500, num_samples=2700, progress=lambda *step: progress.append(step))
    assert found.num_samples == 2700
    assert progress == [("reading", 1.0)]
    assert list(found.deduplication) == [1024, 2048]


def test_the_suggestion_has_what_is_asked_for(data: MemoryDataSet) -> None:
    by_rate = profile(data, batch_size=1000, hit_rate=0.6)
    assert by_rate.suggestion.hit_rate == pytest.approx(0.6, abs=0.01)
    by_memory = profile(data, batch_size=1000, memory="64KB", record_bytes=64)
    assert by_memory.suggestion.rows == 1000


def test_bad_calls(data: MemoryDataSet) -> None:
    with pytest.raises(ValueError, match="batch_size is 0"):
        profile(data, batch_size=0)
    with pytest.raises(ValueError, match=r"num_samples is 0, .*there are 0 samples"):
        profile(MemoryDataSet.of(skewed(0), ROWS))


def test_shown_as_a_table(found: Profile) -> None:
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=120)
    show(found, console)
    text = console.file.getvalue()
    for expected in ["c0", "3,000", "8,192", f"{found.deduplication[8192]:.1%}", f"--cache {found.suggestion.rows}"]:
        assert expected in text


def test_drawn_as_a_picture(found: Profile, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(found, tmp_path / "profile.png")
    assert (tmp_path / "profile.png").read_bytes()[:4] == b"\x89PNG"
    plot(found, tmp_path / "profile.svg")
    assert (tmp_path / "profile.svg").read_text().count("<path") > 20
