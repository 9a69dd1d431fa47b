"""The example of docs/adding-a-model.md runs."""

import re
from pathlib import Path
from typing import Any

from hotrows.models import MODELS

GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-model.md"


def test_the_example_runs_and_learns() -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL))
    names: dict[str, Any] = {}
    try:
        exec(code, names)
    finally:
        MODELS.pop("mean-pooling", None)
    assert names["loss"].item() < 0.01
