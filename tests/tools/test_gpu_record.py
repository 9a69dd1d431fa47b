"""tools/gpu_record.py: it says what has changed since the GPU tests ran, and never fails."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

KERNEL = "src/hotrows/ops/swap/kernel.py"


@pytest.fixture
def gpu_record() -> ModuleType:
    return importlib.import_module("gpu_record")


@pytest.fixture
def root(tmp_path: Path, gpu_record: ModuleType) -> Path:
    for path in (KERNEL, "src/hotrows/runtime/streams.py", "src/hotrows/table.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("first\n")
    record = {
        "commit": "0123abcd",
        "device": "a GPU",
        "seconds": 12.0,
        "counts": {"passed": 7, "failed": 0, "skipped": 1},
        "gpu_only_files": gpu_record.digests(tmp_path),
    }
    (tmp_path / gpu_record.RECORD).parent.mkdir(parents=True)
    (tmp_path / gpu_record.RECORD).write_text(json.dumps(record))
    return tmp_path


def printed(gpu_record: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert gpu_record.main(["--root", str(root)]) == 0
    return capsys.readouterr().out


def test_nothing_has_changed(gpu_record: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "src/hotrows/table.py").write_text("changed, but a CPU runs it\n")
    found = printed(gpu_record, root, capsys)
    assert "0123abcd" in found
    assert "7 passed" in found
    assert "has not changed since" in found


def test_changes_are_listed(gpu_record: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / KERNEL).write_text("changed\n")
    (root / "src/hotrows/runtime/streams.py").unlink()
    (root / "src/hotrows/runtime/events.py").write_text("new\n")
    found = printed(gpu_record, root, capsys)
    assert f"  {KERNEL}\n" in found
    assert "streams.py (deleted)" in found
    assert "events.py (new)" in found
    assert "table.py" not in found


@pytest.mark.parametrize("content", [None, "not json", "[]"])
def test_no_record(gpu_record: ModuleType, root: Path, capsys: pytest.CaptureFixture[str], content: str | None) -> None:
    (root / gpu_record.RECORD).unlink()
    if content is not None:
        (root / gpu_record.RECORD).write_text(content)
    assert "no record" in printed(gpu_record, root, capsys)


def test_a_record_without_digests(gpu_record: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads((root / gpu_record.RECORD).read_text())
    del record["gpu_only_files"]
    (root / gpu_record.RECORD).write_text(json.dumps(record))
    assert "cannot be told" in printed(gpu_record, root, capsys)


def test_commit_without_the_git_program(
    gpu_record: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOTROWS_COMMIT", raising=False)
    monkeypatch.setenv("PATH", "")
    assert gpu_record.commit(tmp_path) == "unknown"
    (tmp_path / ".git/refs/heads").mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git/packed-refs").write_text("# pack-refs\nfeed refs/heads/main\n")
    assert gpu_record.commit(tmp_path) == "feed"
    (tmp_path / ".git/refs/heads/main").write_text("beef\n")
    assert gpu_record.commit(tmp_path) == "beef"
    monkeypatch.setenv("HOTROWS_COMMIT", "cafe")
    assert gpu_record.commit(tmp_path) == "cafe"


def test_every_pattern_names_files_of_this_project(gpu_record: ModuleType) -> None:
    missing = [pattern for pattern in gpu_record.GPU_ONLY if not list(gpu_record.ROOT.glob(pattern))]
    assert missing == []
