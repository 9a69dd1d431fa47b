"""The report says what the run measured, and only that, whatever is missing."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hotrows.report import write_report
from tests.report import runs

PLOTS = {
    "loss", "auc", "learning-rate", "hit-rate", "bytes", "stalls", "throughput", "stages", "longest-stage", "memory",
    "contents",
}  # fmt: skip
HOSTILE = "</script><script>alert(1)</script>\"'&"


class Page(HTMLParser):
    """A page as tags with their attributes, and the text that a reader sees."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._inside: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._inside):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def plots(self, empty: bool = False) -> set[str]:
        return {a["data-plot"] or "" for _, a in self.tags if "data-plot" in a and ("data-empty" in a) == empty}


def report(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return runs.write_run(tmp_path / "run", num_lines=40)


def test_shows_the_figures_of_the_run(run: Path) -> None:
    page = report(run)
    assert page.plots() == PLOTS
    assert "dlrm:freqcache on criteo-kaggle" in page.text
    summary = runs.read_json(run, "summary")
    for value in summary["test"].values():
        assert f"{value:.4f}" in page.text
    for words in (
        "91.3%",
        "1.5%",
        "506 k of 33.8 M",
        "412 MB",
        "4.32 GB",
        "Longest stage: train",
        "warm_up",
        "e5c11a9",
    ):
        assert words in page.text
    assert all(f"C{table + 1}" in page.text for table in range(26))
    assert "not measured" not in page.text


def test_needs_nothing_but_itself(run: Path) -> None:
    source = write_report(run).read_text(encoding="utf-8")
    for tag, attributes in Page(source).tags:
        assert tag not in {"link", "iframe", "object", "embed", "img", "base"}
        assert not {"src", "href", "xlink:href", "srcset"} & set(attributes)
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttpRequest", source)
    assert "default-src 'none'" in source


def test_stays_small_however_long_the_run(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path, num_lines=20_000, table_rows=(1000,) * 500)
    assert write_report(run).stat().st_size < 1_000_000


def test_many_tables_end_in_others(tmp_path: Path) -> None:
    page = report(runs.write_run(tmp_path, num_lines=5, table_rows=tuple(range(1000, 1045))))
    assert "15 others" in page.text


def test_names_are_text(run: Path) -> None:
    cache, config = runs.read_json(run, "cache"), runs.config()
    cache["tables"][0]["name"] = HOSTILE
    config[HOSTILE] = {"data": HOSTILE}
    config["data"] = HOSTILE
    metrics = runs.read_metrics(run)
    for line in metrics:
        line.get("stages", {})[HOSTILE] = 1.0
    runs.write_json(run, "cache", cache)
    runs.write_json(run, "config", config)
    runs.write_json(run, "environment", {HOSTILE: HOSTILE, "hardware": HOSTILE, "started": HOSTILE})
    runs.write_json(run, "summary", runs.read_json(run, "summary") | {"model": HOSTILE, "strategy": HOSTILE})
    runs.write_metrics(run, metrics)
    source = write_report(run).read_text(encoding="utf-8")
    assert "<script>alert" not in source
    page = Page(source)
    assert HOSTILE in page.text
    assert [tag for tag, _ in page.tags].count("script") == len(PLOTS) - 3 + 1  # the curves' values and the page's own


def test_no_validation_and_no_test(run: Path) -> None:
    runs.write_metrics(run, [line for line in runs.read_metrics(run) if line["kind"] == "train"])
    runs.write_json(run, "summary", runs.read_json(run, "summary") | {"valid": None, "test": None})
    page = report(run)
    assert page.plots(empty=True) == {"auc"}
    assert "Test AUC not measured" in page.text


def test_interrupted_after_three_steps(run: Path) -> None:
    lines = [line for line in runs.read_metrics(run) if line["kind"] == "train"][:3]
    runs.write_metrics(run, [line | {"step": i, "samples": 2048 * i} for i, line in enumerate(lines, start=1)])
    changes = {"interrupted": True, "steps": 3, "valid": None, "test": None}
    runs.write_json(run, "summary", runs.read_json(run, "summary") | changes)
    page = report(run)
    assert "interrupted after 3 steps" in page.text
    assert page.plots(empty=True) == {"auc"}


@pytest.mark.parametrize("num_lines", [0, 1])
def test_hardly_any_metrics(run: Path, num_lines: int) -> None:
    runs.write_metrics(run, runs.read_metrics(run)[:num_lines])
    page = report(run)
    over_time = PLOTS - {"memory", "contents", "auc"}
    assert page.plots() == {"memory", "contents"} | (over_time if num_lines else set())


def test_killed_in_the_middle_of_a_line(run: Path) -> None:
    for name in ("summary", "cache", "environment", "config"):
        (run / f"{name}.json").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 99')
    page = report(run)
    assert page.plots(empty=True) == {"memory", "contents"}
    assert "unfinished" in page.text
    assert "metrics.jsonl has 1 broken line" in page.text
    assert "Test AUC 0.7987" in page.text  # it is in the metrics file


def test_a_broken_summary_is_reported(run: Path) -> None:
    (run / "summary.json").write_text('{"steps": ')
    assert "summary.json is not a JSON object" in report(run).text


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_a_loss_that_is_not_a_number(run: Path, bad: float | None) -> None:
    metrics = runs.read_metrics(run)
    bad_lines = [line for line in metrics if line["kind"] == "train"][5:]
    for line in bad_lines:
        line["loss"] = bad
    runs.write_metrics(run, metrics)
    summary = runs.read_json(run, "summary")
    summary["train"]["loss"] = summary["test"]["auc"] = bad
    runs.write_json(run, "summary", summary)
    source = write_report(run).read_text(encoding="utf-8")
    page = Page(source)
    assert f"The loss was not a finite number in {len(bad_lines)} of 40 lines." in page.text
    assert "Test AUC not measured" in page.text
    assert not any(re.search("nan|inf", a["d"] or "", re.IGNORECASE) for tag, a in page.tags if tag == "path")


def test_a_run_without_a_cache(run: Path) -> None:
    metrics = runs.read_metrics(run)
    for line in metrics:
        for name in ("hit_rate", "stalls", "bytes_in", "bytes_out", "stages"):
            line.pop(name, None)
    runs.write_metrics(run, metrics)
    runs.write_json(run, "summary", runs.read_json(run, "summary") | {"cache": None, "device_memory": 0})
    runs.write_json(run, "cache", {"slots": 0, "used": 0, "tables": []})
    page = report(run)
    assert page.plots(empty=True) == {"hit-rate", "bytes", "stalls", "stages", "longest-stage", "contents"}


def test_nothing_moved_and_nothing_cached(run: Path) -> None:
    metrics = runs.read_metrics(run)
    for line in metrics:
        if line["kind"] == "train":
            line |= {"stalls": 0, "bytes_in": 0, "bytes_out": 0, "hit_rate": 1.0, "lr": 0.0, "loss": 0.5}
    runs.write_metrics(run, metrics)
    summary, cache = runs.read_json(run, "summary"), runs.read_json(run, "cache")
    summary["cache"] |= {"hit_rate": 1.0, "evictions": 0, "misses": 0, "bytes_in": 0, "bytes_out": 0, "stalls": 0}
    runs.write_json(run, "summary", summary)
    cache["tables"] = [table | {"cached": 0} for table in cache["tables"]] + [{"name": "none", "rows": 0, "cached": 0}]
    runs.write_json(run, "cache", cache)
    page = report(run)
    assert page.plots() == PLOTS
    assert "Hit rate 100%" in page.text


def test_a_resumed_run_counts_steps_since_it_began(run: Path) -> None:
    metrics = [line for line in runs.read_metrics(run) if line["kind"] == "train"][20:]
    for line in metrics:
        line["bytes_in"] = 50 * 1_000_000
    runs.write_metrics(run, metrics)
    source = write_report(run).read_text(encoding="utf-8")
    figure = source[source.index('data-plot="bytes"') :]
    texts = json.loads(figure.split('<script type="application/json">')[1].split("</script>")[0])[0][2]
    assert set(texts) == {"1.00 MB"}


def test_a_directory_that_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no run directory"):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())
