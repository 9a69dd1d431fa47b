"""JSON as every reader takes it: a number that is not finite is written as null.

Python's `json` would write NaN and Infinity, which are not JSON: JavaScript, jq and databases refuse the whole file.
"""

import json
import math
from typing import Any


def json_text(content: Any, *, indent: int | None = None, sort_keys: bool = False, ascii_only: bool = True) -> str:
    """The content as JSON text. NaN and the infinities become null."""
    return json.dumps(
        finite_or_none(content), indent=indent, sort_keys=sort_keys, ensure_ascii=ascii_only, allow_nan=False
    )


def finite_or_none(content: Any) -> Any:
    """The same content, with None in place of every number that is not finite."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: finite_or_none(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite_or_none(value) for value in content]
    return content
