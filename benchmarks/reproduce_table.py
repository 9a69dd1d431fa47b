"""Makes a page of tables for each paper from the results of `hotrows reproduce`.

`python benchmarks/reproduce_table.py` reads every JSON file under benchmarks/results/reproduce and writes
docs/results/PAPER.md. Do not edit these pages by hand: tests/benchmarks/test_reproduce_table.py compares them with the
output of this script.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from step_table import table

from hotrows.reproduce import PAPERS
from hotrows.reproduce.experiment import Column

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "reproduce"
PAGES = ROOT / "docs" / "results"
TITLES = {"freqcache": "FreqCache", "heca": "HECA"}
RUNS = {  # folder under the results → title of its sections, in the order of the page
    "h200-full": "H200, full scale",
    "cpu-small": "2 CPU cores, small scale",
}
ABOUT = """\
The tables and figures of *{title}*, measured again by `hotrows reproduce`.

[papers.md](../papers.md) says what they show, and gives the reason for each **NO**. This page is made by
`benchmarks/reproduce_table.py` from the JSON files in
[benchmarks/results/reproduce](../../benchmarks/results/reproduce), which also have the commit and the versions of a
run.

A published value is *not readable* if it is only drawn, not printed. Times of a small scale on a CPU say nothing about
a GPU: the CPU is host and device at once, and its times vary by ten percent and more from run to run."""


def render_page(paper: str, results: Path) -> str:
    """The page of one paper. Each figure has a section, and in it a section for each run that has the figure."""
    sections = []
    for experiment in PAPERS[paper].experiments:
        runs = []
        for folder, title in RUNS.items():
            path = results / folder / paper / f"{experiment.name}.json"
            if path.exists():
                runs.append(f"### {title}\n\n{render_figure(json.loads(path.read_text()))}")
        if runs:
            sections.append("\n\n".join([f'<a id="{experiment.name}"></a>\n\n## {experiment.title}', *runs]))
    if not sections:
        raise SystemExit(f"{results} has no results of `hotrows reproduce {paper}`")
    title, about = TITLES[paper], ABOUT.format(title=PAPERS[paper].title)
    return "\n\n".join([f"# {title}: results", about, *sections]) + "\n"


def render_figure(found: dict[str, Any]) -> str:
    """One figure of one run: the hardware, the table, whether each claim holds, and notes."""
    environment = found["environment"]
    settings = ", ".join(f"{key} {value}" for key, value in found["settings"].items())
    columns = [Column(**column) for column in found["columns"]]
    rows = [[column.text(row[column.key]) for column in columns] for row in found["rows"]]
    where = f"{environment['hardware']}, {found['scale']} scale ({found['sizes']})"
    verdicts = "\n".join(f"- **{claim['verdict']}**: {claim['text']} ({claim['found']})" for claim in found["claims"])
    parts = [
        f"{where}{'; ' + settings if settings else ''}.",
        table([column.title for column in columns], rows),
        verdicts,
        *found["notes"],
    ]
    return "\n\n".join(part for part in parts if part)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="a folder for each run (default: %(default)s)")
    parser.add_argument("--pages", type=Path, default=PAGES, help="where the pages go (default: %(default)s)")
    given = parser.parse_args()
    given.pages.mkdir(parents=True, exist_ok=True)
    for paper in PAPERS:
        (given.pages / f"{paper}.md").write_text(render_page(paper, given.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
