"""Settings in the syntax of a run file."""

import json
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any


def as_toml(value: Any) -> str:
    """A value in the syntax of a run file. TOML has no null, so a run file leaves out a setting that is None."""
    if value is MISSING:
        return "(required)"
    if value is None:
        return "(left out)"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")  # JSON allows this character, TOML does not


def as_run_file(content: Mapping[str, Any]) -> str:
    """The content of a `RunConfig` as a run file. A setting that is left out is named in a comment."""
    lines = [_line(name, value) for name, value in content.items() if not isinstance(value, dict)]
    for section, settings in content.items():
        if isinstance(settings, dict):
            lines += ["", f"[{section}]", *(_line(name, value) for name, value in settings.items())]
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any) -> str:
    return f"{'# ' if value is None else ''}{name} = {as_toml(value)}"
