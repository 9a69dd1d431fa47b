"""tools/gpu_test.py on small projects: what it counts, what it says of tests that do not end, and what it writes."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = "import os\ndef examples(number):\n    return int(number * float(os.environ.get('HOTROWS_EXAMPLES', '1')))\n"


def run(root: Path, *arguments: str, **files: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the record of a run over test files with these contents."""
    (root / "tests").mkdir()
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["gpu"]\nfilterwarnings = ["error"]\n')
    for name, content in files.items():
        (root / "tests" / f"test_{name}.py").write_text(content)
    out = root / "record.json"
    options = ["--root", str(root), "--out", str(out), "--marker", "not gpu", "--workers", "2", *arguments]
    code = importlib.import_module("gpu_test").main(options)
    return code, json.loads(out.read_text())


def test_counts_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HOTROWS_COMMIT", "0123abcd")
    code, record = run(
        tmp_path,
        good="import pytest\n@pytest.mark.parametrize('n', range(3))\ndef test_it(n): pass\n",
        mixed="import pytest\ndef test_bad():\n    assert 1 + 1 == 3\ndef test_left(): pytest.skip('not here')\n",
        marked="import pytest\n@pytest.mark.gpu\ndef test_not_selected(): assert False\n",
    )
    assert code == 1
    assert record["counts"] == {"passed": 3, "failed": 1, "skipped": 1}
    assert {path: counts["passed"] for path, counts in record["files"].items()} == {
        "tests/test_good.py": 3,
        "tests/test_mixed.py": 0,
    }
    assert record["failures"] == ["tests/test_mixed.py::test_bad"]
    assert record["commit"] == "0123abcd"
    printed = capsys.readouterr().out
    assert "assert 1 + 1 == 3" in printed or "assert (1 + 1) == 3" in printed
    assert "3 passed, 1 failed, 1 skipped" in printed


def test_a_test_without_end_is_killed_and_the_others_still_run(tmp_path: Path) -> None:
    content = "import time\ndef test_first(): pass\ndef test_sleeps(): time.sleep(600)\ndef test_last(): pass\n"
    code, record = run(tmp_path, "--shard-limit", "4", slow=content)
    assert code == 1
    assert record["counts"] == {"passed": 2, "failed": 1, "skipped": 0}
    assert record["failures"] == ["tests/test_slow.py::test_sleeps"]


def test_a_test_that_ends_the_process_fails_and_the_others_still_run(tmp_path: Path) -> None:
    content = "import os\ndef test_aborts(): os.abort()\ndef test_last(): pass\n"
    code, record = run(tmp_path, crash=content)
    assert code == 1
    assert record["counts"] == {"passed": 1, "failed": 1, "skipped": 0}


def test_what_is_not_started_in_time_is_a_failure(tmp_path: Path) -> None:
    code, record = run(tmp_path, "--limit", "0", good="def test_it(): pass\n")
    assert code == 1
    assert record["failures"] == ["tests/test_good.py::test_it"]


def test_files_that_cannot_be_imported(tmp_path: Path) -> None:
    """A file that needs an optional module which is not there is skipped; any other error is a failure."""
    code, record = run(
        tmp_path,
        broken="import no_such_module_of_ours\ndef test_it(): pass\n",
        optional="raise ModuleNotFoundError(\"No module named 'ibis'\")\n",
        good="def test_it(): pass\n",
    )
    assert code == 1
    assert record["counts"] == {"passed": 1, "failed": 1, "skipped": 1}
    assert record["failures"] == ["tests/test_broken.py"]
    assert record["not_installed"] == {"needs ibis": 1}


def test_a_long_random_test_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes draw as many cases together as it draws alone, from different seeds."""
    drawn = tmp_path / "drawn"
    content = (
        f"{EXAMPLES}from hypothesis import given, settings, strategies as st\n"
        "@settings(max_examples=examples(60), database=None)\n"
        "@given(n=st.integers(0, 2**60))\n"
        "def test_it(n):\n"
        f"    with open({str(drawn)!r}, 'a') as lines:\n"
        "        lines.write(f'{os.getpid()} {n}\\n')\n"
    )
    shards = importlib.import_module("shards")
    monkeypatch.setattr(shards, "UNKNOWN_EXAMPLE_SECONDS", 0.9)
    code, record = run(tmp_path, random=content)
    assert code == 0
    assert record["counts"] == {"passed": 1, "failed": 0, "skipped": 0}
    lines = [line.split() for line in drawn.read_text().splitlines()]
    assert len({process for process, _ in lines}) == 4
    assert len(lines) >= 60
    assert len({number for _, number in lines}) > 40


def test_without_a_gpu_there_is_nothing_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_test = importlib.import_module("gpu_test")
    monkeypatch.setattr(gpu_test, "device_name", lambda: "CPU (2 cores)")
    assert gpu_test.main([]) == 2


def test_what_failed_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_test = importlib.import_module("gpu_test")
    monkeypatch.setattr(gpu_test, "device_name", lambda: "a GPU")
    monkeypatch.setenv("HOTROWS_COMMIT", "first")
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["gpu"]\n')
    path = tmp_path / "tests" / "test_it.py"
    content = "import pytest\npytestmark = pytest.mark.gpu\ndef test_good(): pass\ndef test_bad(): assert {}\n"
    path.write_text(content.format("False"))
    options = ["--root", str(tmp_path), "--workers", "2"]
    assert gpu_test.main(options) == 1
    path.write_text(content.format("True"))
    monkeypatch.setenv("HOTROWS_COMMIT", "second")
    assert gpu_test.main([*options, "--again"]) == 0
    record = json.loads((tmp_path / "benchmarks" / "results" / "gpu-tests.json").read_text())
    assert record["commit"] == "first"
    assert record["counts"] == {"passed": 2, "failed": 0, "skipped": 0}
    assert record["failures"] == []
    assert {name: record["files"]["tests/test_it.py"][name] for name in ("passed", "failed")} == {
        "passed": 2,
        "failed": 0,
    }
    assert [(each["commit"], each["tests"]) for each in record["again"]] == [("second", ["tests/test_it.py::test_bad"])]
    assert gpu_test.main([*options, "--again"]) == 2
