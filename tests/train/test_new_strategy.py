"""A new strategy is one class and one entry in STRATEGIES: everything else follows from these two."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from hotrows.batch import Batch
from hotrows.data.schema import Loader
from hotrows.nn.collection import EmbeddingBagCollection
from hotrows.strategies import STRATEGIES, option
from hotrows.strategies.lookahead import LookaheadStrategy
from hotrows.train.config import RunConfig
from tests.cli.test_main import call, last_line

DATA = "synthetic:criteo-kaggle?scale=0.001&samples=6000&seed=3"
RUN = """
data = "{data}"
device = "cpu"
strategy = "{strategy}"
[model]
name = "dlrm:rmc2"
dim = 4
[cache]
size = "10%"
[train]
batch_size = 256
eval_every = 8
max_steps = 18
"""


@dataclass(frozen=True)
class ReversedOptions:
    block: int = option(4, "How many batches are reversed together.")
    note: str | None = option(None, "Any text, for the report.")

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"reversed.block is {self.block}, it must be 1 or more")


class ReversedBlocks:
    """The batches of a loader, each block of them in reverse order."""

    def __init__(self, loader: Loader, block: int) -> None:
        self._loader = loader
        self._block = block

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self._loader)
        while block := list(islice(batches, self._block)):
            yield from reversed(block)

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)


class ReversedStrategy(LookaheadStrategy):
    """Decides the order of the batches, and records all evaluations."""

    help = "Trains every block of batches in reverse order."
    options_type = ReversedOptions
    overrules = ("policy",)

    options: ReversedOptions

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._evaluations: list[tuple[str, int, float]] = []

    def loader(self, loader: Loader) -> Loader:
        return ReversedBlocks(loader, self.options.block)

    def evaluated(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        self._evaluations.append((split, step, metrics["auc"]))

    def outcome(self, bags: EmbeddingBagCollection) -> dict[str, Any]:
        return {"evaluations": self._evaluations}

    @classmethod
    def describe_outcome(cls, outcome: Mapping[str, Any]) -> list[tuple[str, str]]:
        return [("was called", f"after {len(outcome['evaluations'])} evaluations")]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "reversed", ReversedStrategy)


def train(directory: Path, strategy: str, section: str = "", code: int = 0) -> Any:
    """`hotrows train` with a run file, in a directory of its own."""
    directory.mkdir()
    (directory / "run.toml").write_text(RUN.format(data=DATA, strategy=strategy) + section)
    return call("train", directory / "run.toml", "--out", directory / "out", "--json", code=code)


def test_it_trains_from_a_run_file_in_the_order_it_decides(tmp_path: Path) -> None:
    plain = last_line(train(tmp_path / "lookahead", "lookahead"))
    unchanged = last_line(train(tmp_path / "one", "reversed", "[reversed]\nblock = 1"))
    reordered = last_line(train(tmp_path / "three", "reversed", "[reversed]\nblock = 3"))
    for key in ("steps", "samples", "train", "valid", "test"):
        assert unchanged[key] == plain[key]
    assert (reordered["steps"], reordered["samples"]) == (plain["steps"], plain["samples"])
    assert reordered["train"] != plain["train"]


def test_it_is_called_after_every_evaluation(tmp_path: Path) -> None:
    summary = last_line(train(tmp_path / "run", "reversed"))
    outcome: Any = summary["strategy_outcome"]
    assert [(split, step) for split, step, _ in outcome["evaluations"]] == [
        ("valid", 8), ("valid", 16), ("valid", 18), ("test", 18),
    ]  # fmt: skip
    results: Any = {split: summary[split] for split in ("valid", "test")}
    assert outcome["evaluations"][-2:] == [["valid", 18, results["valid"]["auc"]], ["test", 18, results["test"]["auc"]]]


def test_its_settings_and_outcome_are_in_the_run_directory(tmp_path: Path) -> None:
    shown = train(tmp_path / "run", "reversed", '[reversed]\nblock = 3\nnote = "all of it"')
    config = (tmp_path / "run" / "out" / "config.json").read_text()
    assert '"reversed": {' in config
    report = (tmp_path / "run" / "out" / "report.html").read_text()
    for text in ("Trains every block of batches in reverse order.", "all of it", "after 4 evaluations"):
        assert text in report
    assert "was called" in shown.stdout


def test_its_settings_are_in_the_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = call("train", "--help").stdout
    for text in (
        "reversed", "Trains every block of batches in reverse order.", "[reversed]", "block = 4",
        "How many batches are reversed together.", "note = (left out)",
    ):  # fmt: skip
        assert text in shown


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("[reversed]\nblocks = 3", "unknown 'blocks'; known are block, note"),
        ("[reversed]\nblock = 'three'", "block is 'three', it must be int"),
        ("[reversed]\nblock = 0", "reversed.block is 0, it must be 1 or more"),
        ("[revers]\nblock = 3", "unknown 'revers'"),
    ],
)
def test_mistakes_in_its_section_are_one_sentence(tmp_path: Path, section: str, message: str) -> None:
    assert message in train(tmp_path / "run", "reversed", section, code=2).stderr
    assert not (tmp_path / "run" / "out").exists()


def test_the_options_of_the_chosen_strategy_are_read_back() -> None:
    config = RunConfig(data=DATA, strategy="reversed", options={"reversed": ReversedOptions(block=7)})
    assert RunConfig.from_dict(config.to_json(), "test") == config
    assert RunConfig(strategy="reversed").to_json()["reversed"] == {"block": 4, "note": None}
