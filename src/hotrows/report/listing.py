"""Names and values in two columns: configuration, environment, counts."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from hotrows.json_text import json_text
from hotrows.report.units import NOT_MEASURED


def listing(title: str, values: Mapping[str, Any]) -> str:
    """A card with a line per value. The values of a nested mapping follow its name."""
    lines = "".join(_lines(values))
    body = f"<table>{lines}</table>" if lines else f'<p class="empty">{NOT_MEASURED}</p>'
    return f'\n<section class="card listing"><h3>{escape(title)}</h3>{body}</section>'


def _lines(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    nested = {name: value for name, value in values.items() if isinstance(value, dict) and value}
    for name, value in values.items():
        if name not in nested:
            yield f"<tr><th>{escape(str(name))}</th><td>{escape(_text(value))}</td></tr>\n"
    for name, value in nested.items():
        title = f"{path}{name}"
        yield f'<tr class="group"><th colspan="2">{escape(title)}</th></tr>\n'
        yield from _lines(value, f"{title}.")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return ", ".join(str(item) for item in value)
    return json_text(value, ascii_only=False)
