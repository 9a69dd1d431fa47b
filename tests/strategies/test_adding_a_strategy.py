"""The example of docs/adding-a-strategy.md runs, and trains like all rows on the device."""

import re
from pathlib import Path
from typing import Any

from hotrows.strategies import STRATEGIES, option_sections

GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-strategy.md"


def test_the_example_runs_and_is_exact() -> None:
    text = GUIDE.read_text()
    names: dict[str, Any] = {}
    try:
        exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), names)  # it compares the weights itself
        assert option_sections()["pinned"] is names["PinnedOptions"]
    finally:
        STRATEGIES.pop("pinned", None)
    assert f"print(outcome)  # {names['outcome']}" in text
