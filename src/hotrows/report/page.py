"""The page: title, headline figures, plots, and the settings and environment of the run."""

import os
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from hotrows.report.contents import contents
from hotrows.report.figures import Figures
from hotrows.report.headline import headline
from hotrows.report.listing import listing
from hotrows.report.run import Run, number, read_run
from hotrows.report.strategy import describe_strategy, overruled_settings
from hotrows.report.units import NOT_MEASURED, duration, percent, whole


def write_report(run: Path) -> Path:
    """Write `report.html` into a run directory, from the files that a training wrote there.

    The page needs no network and no other file. Where the run did not measure something, the page says so.
    """
    report = run / "report.html"
    half = run / "report.html.part"
    half.write_text(page(read_run(run)), encoding="utf-8")
    os.replace(half, report)
    return report


def page(run: Run) -> str:
    figures = Figures(run)
    model, data = _name(_model(run)), _name(_data(run))
    return Template(_file("page.html")).substitute(
        title=escape(f"{model} on {data}"),
        style=_file("report.css"),
        script=_file("report.js"),
        badge=_badge(run),
        facts="".join(f"<li>{escape(name)} <b>{escape(text)}</b></li>" for name, text in _facts(run)),
        story=escape(_story(run)),
        warnings="".join(f'<p class="warning">{escape(text)}</p>' for text in _warnings(run)),
        headline=headline(run),
        learning=figures.loss() + figures.auc() + figures.learning_rate(),
        caching=figures.hit_rate() + figures.bytes_moved() + figures.stalls(),
        time=figures.throughput() + figures.stages() + figures.longest_stage(),
        memory=figures.memory() + listing("Cache in numbers", _counts(run)),
        contents=contents(run),
        settings=listing("Configuration", run.config)
        + listing("Strategy", describe_strategy(run))
        + listing("Environment", run.environment),
    )


def _file(name: str) -> str:
    return files("hotrows.report").joinpath(name).read_text(encoding="utf-8")


def _model(run: Run) -> str:
    model = run.config.get("model")
    return str(run.summary.get("model") or (model.get("name") if isinstance(model, dict) else model) or "a model")


def _data(run: Run) -> str:
    data = run.config.get("data")
    if isinstance(data, dict):
        data = data.get("path") or data.get("name")
    return str(data or "unnamed data")


def _name(text: str) -> str:
    """The last part of a path; any other text is returned unchanged."""
    return text.rstrip("/").rsplit("/", 1)[-1] or text


def _badge(run: Run) -> str:
    steps = number(run.summary, "steps")
    if run.failure:
        return '<span class="badge">failed: see below</span>'
    if not run.summary:
        return '<span class="badge">unfinished: no summary</span>'
    if run.summary.get("interrupted"):
        return f'<span class="badge">interrupted after {whole(steps)} {"step" if steps == 1 else "steps"}</span>'
    return ""


def _warnings(run: Run) -> list[str]:
    failure = run.failure.get("message")
    return [*(str(failure).splitlines() if failure else ()), *run.unreadable]


def _facts(run: Run) -> list[tuple[str, str]]:
    config, environment = run.config, run.environment
    cache, train = (value if isinstance(value, dict) else {} for value in (config.get("cache"), config.get("train")))
    cache = {name: value for name, value in cache.items() if name not in overruled_settings(run)}
    started = str(environment.get("started") or "").replace("T", " ")[:16]
    facts = [
        ("strategy", run.summary.get("strategy") or config.get("strategy")),
        ("cache", cache.get("size")),
        ("policy", run.summary["cache"].get("policy") if run.summary.get("cache") else cache.get("policy")),
        ("batch size", train.get("batch_size")),
        ("on", ", ".join(str(environment[name]) for name in ("device", "hardware") if environment.get(name))),
        ("started", started),
    ]
    return [(name, str(value)) for name, value in facts if value not in (None, "")]


def _story(run: Run) -> str:
    """The run in a sentence or two."""
    lines = run.lines("train")
    steps = number(run.summary, "steps") or (lines[-1]["step"] if lines else None)
    if not steps:
        return "No training step was measured."
    seconds = number(run.summary, "seconds") or (number(lines[-1], "seconds") if lines else None)
    story = f"{whole(steps)} {'step' if steps == 1 else 'steps'}"
    samples = number(run.summary, "samples") or (lines[-1]["samples"] if lines else None)
    if samples:
        story += f", {whole(samples)} samples"
    if seconds:
        story += f", {duration(seconds)}"
    share, hits = number(run.summary, "cache", "slots_share"), number(run.summary, "cache", "hit_rate")
    if share is None or hits is None:
        return f"{story}."
    return (
        f"{story}. With {percent(share)} of the rows on the device, {percent(hits)} of those a batch needed were there."
    )


def _counts(run: Run) -> dict[str, str]:
    summary = run.summary
    host, num_rows, dim = (number(summary, name) for name in ("host_memory", "num_rows", "dim"))
    counts = {
        "tables": whole(len(tables)) if isinstance(tables := run.cache.get("tables"), list) else NOT_MEASURED,
        "rows": whole(num_rows),
        "numbers in a row": whole(dim),
        "bytes of a row, with optimizer state": whole(host / num_rows) if host and num_rows else NOT_MEASURED,
        "slots": whole(number(summary, "cache", "rows")),
        "slots used": whole(number(run.cache, "used")),
    }
    names = {
        "misses": "rows fetched",
        "evictions": "rows evicted",
        "overflow": "rows through the overflow buffer",
        "stalls": "batches that waited for rows",
    }
    counts |= {text: whole(number(summary, "cache", name)) for name, text in names.items()}
    return {} if set(counts.values()) == {NOT_MEASURED} else counts
