"""docs/configuration.md: it has every setting, and it is what tools/configuration.py writes today."""

import dataclasses
import importlib
import re
import subprocess
import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hotrows.data.prepare.table import TableSettings
from hotrows.options import option
from hotrows.strategies import freqcache, heca
from hotrows.strategies.base import CacheSettings
from hotrows.train.config import RunConfig
from tests.tools.conftest import TOOLS

PAGE = TOOLS.parent / "docs" / "configuration.md"


@pytest.fixture
def configuration() -> ModuleType:
    return importlib.import_module("configuration")


def dataclasses_of_a_run() -> dict[str, type[Any]]:
    """The dataclass of each section, from the types of the fields of a run."""
    hints = typing.get_type_hints(RunConfig)
    assert hints["cache"] is CacheSettings
    return {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}


def settings_in(text: str) -> list[str]:
    """The first column of a table of settings."""
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)


def test_the_page_is_current() -> None:
    found = subprocess.run([sys.executable, TOOLS / "configuration.py", "--check"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_the_page_has_every_section_and_every_setting() -> None:
    heading, *rest = re.split(r"^##+ (.*)$", PAGE.read_text(), flags=re.MULTILINE)
    parts = dict(zip(rest[::2], rest[1::2], strict=True))
    assert heading.startswith("# Settings")
    for name, kind in {
        **dataclasses_of_a_run(), "freqcache": freqcache.FreqCacheOptions, "heca": heca.HecaOptions,
    }.items():  # fmt: skip
        assert settings_in(parts[f"[{name}]"]) == [
            each.name for each in dataclasses.fields(kind) if each.name != "options"
        ]
    own = {each.name for each in dataclasses.fields(RunConfig)} - dataclasses_of_a_run().keys() - {"options"}
    assert set(settings_in(parts["At the top of the file"])) == own
    in_tables = settings_in(parts["Files of `hotrows prepare table`"])
    assert in_tables == [each.name for each in dataclasses.fields(TableSettings)]


@dataclasses.dataclass
class Settings:
    """Section [settings]: settings of many kinds."""

    size: int | str = option(5, "How much.", also="anything")
    share: float = option(0.5, "Which part.", above=0, most=1)
    mode: str | None = option(None, "Which way, a|b.", choices=("a", "b"))
    names: tuple[str, ...] = option((), "Of what.")


@dataclasses.dataclass
class Unsaid:
    """Section [unsaid]: a setting that nobody has explained."""

    unsaid: int = 3


def test_a_row_says_the_type_the_default_and_what_is_allowed(configuration: ModuleType) -> None:
    rows = configuration.table(Settings)
    assert "| `size` | `5` | anything | How much. |" in rows
    assert "| `share` | `0.5` | number, more than 0 and at most 1 | Which part. |" in rows
    assert "| `mode` | left out | `a`, `b` | Which way, a\\|b. |" in rows
    assert "| `names` | `[]` | list of texts | Of what. |" in rows


def test_a_setting_without_help_is_an_error(configuration: ModuleType) -> None:
    with pytest.raises(AssertionError, match=r"Unsaid\.unsaid has no help"):
        configuration.table(Unsaid)


def test_a_page_that_is_not_current_is_refused(
    configuration: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(sys, "argv", ["configuration.py", "--check"])
    assert configuration.main() == 1
    monkeypatch.setattr(sys, "argv", ["configuration.py"])
    assert configuration.main() == 0
    monkeypatch.setattr(sys, "argv", ["configuration.py", "--check"])
    assert configuration.main() == 0
