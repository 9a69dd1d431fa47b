"""The example of docs/adding-a-policy.md runs, and its numbers are true."""

import re
from pathlib import Path
from typing import Any

import hotrows

GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-policy.md"


def test_the_example_runs_and_its_numbers_are_true() -> None:
    text = GUIDE.read_text()
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), names)
    for policy, name in ((names["FIFO"](), "FIFO"), ("lru", "LRU"), ("lookahead", "lookahead"), ("belady", "Belady")):
        rate = hotrows.simulate(names["trace"], policy, capacity=2_000).hit_rate
        assert f"{rate:.3f} ({name})" in text
    assert names["bag"].stats().batches == len(names["trace"])
