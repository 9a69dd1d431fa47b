"""tools/shards.py: every test is in one shard, or in all the parts of its own, and the longest shards come first."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

DRAWN = "@settings(max_examples=examples(300))\n@given(n=integers())\ndef test_drawn(n): pass\ndef test_plain(): pass\n"


@pytest.fixture
def shards() -> ModuleType:
    return importlib.import_module("shards")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a", "b", "drawn"):
        (tmp_path / f"{name}.py").write_text(DRAWN if name == "drawn" else "def test(): pass\n")
    return tmp_path


def test_every_test_once(shards: ModuleType, root: Path) -> None:
    nodes = [f"{name}.py::test[{n}]" for name in "ab" for n in range(500)]
    made = shards.make_shards(nodes, root, shards.Durations(), num_workers=4)
    assert sorted(node for shard in made for node in shard.nodes) == sorted(nodes)
    assert all(len(shard.nodes) <= shards.MAX_TESTS_PER_SHARD for shard in made)
    assert [shard.seconds for shard in made] == sorted((shard.seconds for shard in made), reverse=True)


def test_small_files_share_a_shard(shards: ModuleType, root: Path) -> None:
    (shard,) = shards.make_shards(["a.py::test", "b.py::test"], root, shards.Durations(), num_workers=4)
    assert set(shard.nodes) == {"a.py::test", "b.py::test"}


@pytest.mark.parametrize("examples", [1.0, 0.5, 0.1])
def test_parts_draw_at_least_as_many_cases(shards: ModuleType, root: Path, examples: float) -> None:
    node = "drawn.py::test_drawn[cuda]"
    parts = shards.make_shards([node, "drawn.py::test_plain"], root, shards.Durations(), 8, examples)
    parts = [part for part in parts if part.nodes == (node,)]
    assert len(parts) > 1
    assert {part.num_parts for part in parts} == {len(parts)}
    assert sum(int(300 * part.examples) for part in parts) >= int(300 * examples)


def test_durations_of_an_earlier_run(shards: ModuleType, root: Path) -> None:
    record = {
        "examples": 0.5,
        "slow_tests": {"a.py::test[0]": 50.0, "drawn.py::test_drawn": 20.0},
        "files": {
            "a.py": {"passed": 3, "failed": 0, "skipped": 0, "seconds": 54.0},
            "drawn.py": {"passed": 1, "failed": 0, "skipped": 0, "seconds": 20.0},
        },
    }
    durations = shards.Durations.of(record)
    assert durations.estimate("a.py::test[0]", None, 1.0) == 50
    assert durations.estimate("a.py::test[1]", None, 1.0) == 2
    assert durations.estimate("b.py::test", None, 1.0) == shards.UNKNOWN_TEST_SECONDS
    assert durations.estimate("drawn.py::test_drawn", 300, 1.0) == 40
    first, *_ = shards.make_shards(["b.py::test", "a.py::test[0]"], root, durations, num_workers=2)
    assert first.nodes[0] == "a.py::test[0]"


@pytest.mark.parametrize("record", [None, {}, {"commit": "a record of another form"}])
def test_no_earlier_run(shards: ModuleType, record: dict[str, str] | None) -> None:
    assert shards.Durations.of(record).slow_tests == {}
