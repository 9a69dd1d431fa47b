"""tools/limits.py: what is over a limit needs a reason, and a reason needs something over a limit."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def limits() -> ModuleType:
    return importlib.import_module("limits")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops/long.py").write_text("x = 1\n" * 401)
    (tmp_path / "exact.py").write_text("x = 1\n" * 400)
    methods = "".join(f"    def m{n}(self): pass\n" for n in range(25))
    wide = f"class Wide:\n    @property\n    def p(self): pass\n{methods}"
    (tmp_path / "wide.py").write_text(f"{wide}class Narrow(Wide):\n{methods}")
    body = "    x = 1\n"
    inner = f"class Outer:\n    def long(self):\n{('    ' + body) * 60}"
    (tmp_path / "functions.py").write_text(f"{inner}def short():\n{body * 59}")
    return tmp_path


def test_everything_over_a_limit_is_found(limits: ModuleType, package: Path) -> None:
    assert [(entry.kind, entry.name, entry.size) for entry in limits.entries_of(package)] == [
        ("file", "ops/long.py", 401),
        ("class", "wide.py::Wide", 26),
        ("function", "functions.py::Outer.long", 61),
    ]


def test_every_entry_needs_a_reason(
    limits: ModuleType, package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "REASONS", {"ops/long.py": "A table.", "wide.py::Wide": "An interface."})
    assert limits.main(["--package", str(package)]) == 1
    assert "no reason: functions.py::Outer.long" in capsys.readouterr().out
    limits.REASONS["functions.py::Outer.long"] = "A list of steps."
    assert limits.main(["--package", str(package)]) == 0
    assert "A list of steps." in capsys.readouterr().out


def test_a_reason_for_nothing_is_stale(
    limits: ModuleType, package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reasons = {entry.name: "A reason." for entry in limits.entries_of(package)}
    monkeypatch.setattr(limits, "REASONS", {**reasons, "exact.py": "It was longer once."})
    assert limits.main(["--package", str(package)]) == 1
    assert "stale reason: exact.py" in capsys.readouterr().out
