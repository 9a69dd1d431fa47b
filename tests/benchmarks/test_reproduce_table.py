"""benchmarks/reproduce_table.py: results of `hotrows reproduce` become tables of a page."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from hotrows.reproduce import PAPERS
from hotrows.reproduce.bench import Bench
from hotrows.reproduce.experiment import choose
from hotrows.reproduce.output import write

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("reproduce_table")


def test_tables_go_between_their_lines(script: ModuleType, tmp_path: Path) -> None:
    paper = PAPERS["freqcache"]
    (experiment,) = choose(paper.experiments, ["table1"], "freqcache")
    bench = Bench(paper.scales["small"], "cpu")
    write(tmp_path / "cpu" / "freqcache", "freqcache", experiment, bench, experiment.run(bench))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- tables: cpu -->\nold\n<!-- end -->\nafter\n<!-- tables: gpu -->\n<!-- end -->\n")
    script.put(page, "cpu", script.render(tmp_path / "cpu"))
    found = page.read_text()
    assert "| Criteo Kaggle | embedding rows | 33,762,577 | 33,762,577 |" in found
    assert "- **yes**: columns and embedding rows are the paper's" in found
    assert "old" not in found
    assert found.startswith("before\n")
    assert found.endswith("after\n<!-- tables: gpu -->\n<!-- end -->\n")


def test_a_page_without_the_line_is_refused(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(SystemExit, match="has no line <!-- tables: cpu -->"):
        script.put(page, "cpu", "text")
