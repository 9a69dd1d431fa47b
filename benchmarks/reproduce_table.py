"""What `hotrows reproduce` found, as tables for docs/papers.md.

`python benchmarks/reproduce_table.py benchmarks/results/reproduce/cpu-small` prints the tables of all JSON files in a
directory as Markdown; with `--into docs/papers.md` it puts them between that page's lines
`<!-- tables: cpu-small -->` and `<!-- end -->`.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from step_table import table

from hotrows.reproduce import PAPERS
from hotrows.reproduce.experiment import Column

TITLES = {"freqcache": "FreqCache", "heca": "HECA"}


def render(directory: Path) -> str:
    """All figures of a directory with a folder a paper, in the papers' order."""
    parts = []
    for paper, found in PAPERS.items():
        for experiment in found.experiments:
            path = directory / paper / f"{experiment.name}.json"
            if path.exists():
                parts.append(render_figure(json.loads(path.read_text())))
    if not parts:
        raise SystemExit(f"{directory} has no results of `hotrows reproduce`")
    return "\n\n".join(parts)


def render_figure(found: dict[str, Any]) -> str:
    environment = found["environment"]
    settings = ", ".join(f"{key} {value}" for key, value in found["settings"].items())
    columns = [Column(**column) for column in found["columns"]]
    rows = [[column.text(row[column.key]) for column in columns] for row in found["rows"]]
    where = f"{environment['hardware']}, {found['scale']} scale ({found['sizes']})"
    verdicts = "\n".join(f"- **{claim['verdict']}**: {claim['text']} ({claim['found']})" for claim in found["claims"])
    return "\n\n".join(
        [
            f"#### {TITLES[found['paper']]}, {found['title']}",
            f"{where}{'; ' + settings if settings else ''}.",
            table([column.title for column in columns], rows),
            verdicts,
            *found["notes"],
        ]
    )


def put(page: Path, name: str, text: str) -> None:
    """Replace what is between the lines of this name."""
    pattern = re.compile(rf"(<!-- tables: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    content = page.read_text()
    if not pattern.search(content):
        raise SystemExit(f"{page} has no line <!-- tables: {name} -->, followed by <!-- end -->")
    page.write_text(pattern.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", content))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="what --out of `hotrows reproduce` was, or a copy of it")
    parser.add_argument("--into", type=Path, help="the page to put the tables into")
    given = parser.parse_args()
    text = render(given.directory)
    if given.into is None:
        print(text)
    else:
        put(given.into, given.directory.name, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
