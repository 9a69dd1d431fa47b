"""The headline: the figures of a run that a reader looks for first."""

from html import escape

from hotrows.report.run import Run, number
from hotrows.report.units import NOT_MEASURED, count, duration, fixed, percent, size


def headline(run: Run) -> str:
    return "".join(_tile(*figure) for figure in _figures(run))


def _figures(run: Run) -> list[tuple[str, str, str]]:
    """Label, value and detail of each figure."""
    test, valid, summary = run.evaluation("test"), run.evaluation("valid"), run.summary
    lines = run.lines("train")

    def judged(label: str, name: str) -> tuple[str, str, str]:
        other = number(valid, name)
        return label, fixed(number(test, name)), "" if other is None else f"valid {fixed(other)}"

    rate = number(summary, "samples_per_second") or (number(lines[-1], "samples_per_second") if lines else None)
    seconds = number(summary, "seconds")
    slots, num_rows = number(summary, "cache", "rows"), number(summary, "num_rows")
    inwards, outwards = number(summary, "cache", "bytes_in"), number(summary, "cache", "bytes_out")
    moved = None if inwards is None or outwards is None else inwards + outwards
    misses, host = number(summary, "cache", "misses"), number(summary, "host_memory")
    return [
        judged("Test AUC", "auc"),
        judged("Test log loss", "logloss"),
        judged("Test accuracy", "accuracy"),
        ("Samples per second", count(rate), "" if seconds is None else f"{duration(seconds)} in all"),
        (
            "Hit rate",
            percent(number(summary, "cache", "hit_rate")),
            "" if misses is None else f"{count(misses)} rows missed",
        ),
        (
            "Rows on the device",
            percent(number(summary, "cache", "slots_share")),
            f"{count(slots)} of {count(num_rows)}" if slots is not None and num_rows else "",
        ),
        ("Moved", size(moved), "" if moved is None else f"{size(inwards)} in, {size(outwards)} out"),
        (
            "Device memory",
            size(number(summary, "device_memory") or None),
            f"rows on the host {size(host)}" if host else "",
        ),
    ]


def _tile(label: str, value: str, detail: str) -> str:
    css = ' class="missing"' if value == NOT_MEASURED else ""
    number_part, _, unit = value.partition(" ") if value != NOT_MEASURED else (value, "", "")
    unit = f" <small>{escape(unit)}</small>" if unit else ""
    return (
        f"<div><dt>{escape(label)}</dt><dd><strong{css}>{escape(number_part)}{unit}</strong>"
        f"<span>{escape(detail)}</span></dd></div>"
    )
