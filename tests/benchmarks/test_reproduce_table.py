"""benchmarks/reproduce_table.py: results of `hotrows reproduce` become one page of tables for each paper."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from hotrows.reproduce import PAPERS
from hotrows.reproduce.bench import Bench
from hotrows.reproduce.experiment import choose
from hotrows.reproduce.output import write

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("reproduce_table")


def test_a_page_has_the_figures_of_a_paper(script: ModuleType, tmp_path: Path) -> None:
    paper = PAPERS["freqcache"]
    (experiment,) = choose(paper.experiments, ["table1"], "freqcache")
    bench = Bench(paper.scales["small"], "cpu")
    write(tmp_path / "cpu-small" / "freqcache", "freqcache", experiment, bench, experiment.run(bench))
    found = script.render_page("freqcache", tmp_path)
    assert found.startswith("# FreqCache: results\n")
    assert '<a id="table1"></a>\n\n## Table 1: the data sets\n\n### 2 CPU cores, small scale\n' in found
    assert "| Criteo Kaggle | embedding rows | 33,762,577 | 33,762,577 |" in found
    assert "- **yes**: columns and embedding rows are the paper's" in found
    assert "H200" not in found


def test_a_folder_without_results_is_refused(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no results of `hotrows reproduce heca`"):
        script.render_page("heca", tmp_path)


@pytest.mark.parametrize("paper", PAPERS)
def test_the_pages_in_docs_show_the_results(script: ModuleType, paper: str) -> None:
    page = ROOT / "docs" / "results" / f"{paper}.md"
    made = script.render_page(paper, script.RESULTS)
    assert page.read_text() == made, "results have changed: run `python benchmarks/reproduce_table.py`"


def test_docs_papers_links_to_sections_that_exist(script: ModuleType) -> None:
    links = re.findall(r"\(results/(\w+)\.md#(\w+)\)", (ROOT / "docs" / "papers.md").read_text())
    assert {paper for paper, _ in links} == set(PAPERS)
    for paper, anchor in links:
        assert f'<a id="{anchor}"></a>' in (ROOT / "docs" / "results" / f"{paper}.md").read_text()
