"""Bars: one amount each, with its name and its value as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from hotrows.report.chart import heading, not_measured, note


@dataclass(frozen=True)
class Bar:
    """One amount. The longest bar of a list has the full width."""

    name: str
    amount: float
    text: str
    detail: str = ""
    color: int = 1


def bar(share: float, color: int, label: str) -> str:
    """A bar over `share` of the full width. A share above 0 is never too thin to be seen."""
    width = 0.0 if share <= 0 else max(0.4, 100 * min(1.0, share))
    return (
        f'<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f'<rect class="track" width="100" height="1"/><rect class="c{color}" width="{width:.2f}" height="1"/></svg>'
    )


def bar_list(key: str, title: str, unit: str, bars: Sequence[Bar], text: str = "") -> str:
    """Bars one below the other, from a common zero."""
    if not bars:
        return not_measured(key, title, text)
    longest = max(entry.amount for entry in bars) or 1.0
    rows = "".join(
        f'<li><span class="name">{escape(entry.name)}</span><b>{escape(entry.text)}</b>'
        f"{bar(entry.amount / longest, entry.color, f'{entry.name}: {entry.text}')}"
        f'<span class="detail">{escape(entry.detail)}</span></li>'
        for entry in bars
    )
    return f"""
<figure class="card bars" data-plot="{key}">
{heading(title, unit)}
<ul>{rows}</ul>
{note(text)}
</figure>"""
