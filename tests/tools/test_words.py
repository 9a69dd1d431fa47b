"""tools/words.py: names of mechanisms count, ordinary uses of the same words do not."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def words() -> ModuleType:
    return importlib.import_module("words")


def found_in(words: ModuleType, root: Path, name: str, text: str) -> list[tuple[str, int]]:
    """The old words that are left in a file, and their lines."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return sorted((use.word.old, use.line) for use in words.uses_of(path, root) if use.allowed is None)


CORE = "src/hotrows/cache/invented.py"


@pytest.mark.parametrize(
    ("code", "old"),
    [
        ("move_lane = 1", "lane"),
        ("stream.mark = event", "mark"),
        ("class RowGroup: pass", "RowGroup, group"),
        ("for group in bags.groups: pass", "RowGroup, group"),
        ("flight = plan", "Flight"),
        ("num_parties = 2", "party, party member"),
        ("group_of_seats = None", "seat"),
        ("cache.hold(ticket)", "hold, drop (of tickets)"),
        ("if ticket.landed: pass", "land"),
        ("def next_place(): pass", "place"),
        ("self._num_stalls = 2", "stall (as a row of seats)"),
        ("turn = 1", "turn"),
        ("told = readback", "told"),
        ("keeps_last = True", "keeps_last (of the pipeline)"),
        ("x = Placing.WHAT_FITS", "Placing, ALL_OR_NOTHING, WHAT_FITS, NOTHING"),
        ("from hotrows.cache import contents", "contents (of a cache)"),
        ("number = plan.batch", "Plan.batch, Plan.number"),
        ("planner.plan(unique, number=3)", "Plan.batch, Plan.number"),
        ("from hotrows.nn.updates import Updates", "nn: module, function, updates, tables, deduplicated"),
        ("# The lane runs\n# behind it.", "lane"),
        ('"""A batch waits for its mark."""', "mark"),
        ('raise ValueError("the ring is full")', "ring"),
        ("# See `told_together`.", "told"),
        ("def test_a_seat_is_taken_again(): pass", "seat"),
    ],
)
def test_the_name_of_a_mechanism_counts(words: ModuleType, tmp_path: Path, code: str, old: str) -> None:
    assert old in {name for name, _ in found_in(words, tmp_path, CORE, f"{code}\n")}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("# No plan is in\n# flight now.\nin_flight = []", CORE),
        ("@pytest.mark.gpu\ndef test_it(): pass", "tests/cache/test_invented.py"),
        ("for group in self.optimizer.param_groups: pass", "src/hotrows/optim.py"),
        ("found = match.group(1)", CORE),
        ("row_groups = reader.num_row_groups", "src/hotrows/data/shards.py"),
        ("request_buffer = RequestBuffers(2)", CORE),
        ("# It counts\n# the request buffers.", CORE),
        ("# A ring buffer of events.", CORE),
        ("# Each of them in turn. This turns ids into rows, in place.", CORE),
        ("slot = index.place(rows)", CORE),
        ("stats.stalls += 1\nstats.stall_seconds += 0.5", CORE),
        ("torch.optim.Adam(params, fused=True)", CORE),
        ("import hotrows.cache.planning.victim_scan\nscan_all = True", CORE),
        ("from hotrows.stores.contents import Contents", CORE),
        ("# A third-party library.", CORE),
        ("returned = during = string = marked = landscape = ringing = True", CORE),
        ("# A SIGINT that arrives meanwhile is delivered behind it.", CORE),
    ],
)
def test_an_ordinary_use_does_not_count(words: ModuleType, tmp_path: Path, code: str, name: str) -> None:
    assert found_in(words, tmp_path, name, f"{code}\n") == []


def test_files_count_by_their_names(words: ModuleType, tmp_path: Path) -> None:
    assert found_in(words, tmp_path, "src/hotrows/cache/lanes.py", "") == [("lane", 1)]
    assert found_in(words, tmp_path, "tests/cache/test_ring.py", "") == [("ring", 1)]
    assert found_in(words, tmp_path, "src/hotrows/ops/add_up/kernel.py", "") == [("add_up", 1)]


def test_markdown_counts_text_and_code_but_no_history(words: ModuleType, tmp_path: Path) -> None:
    page = "One\n\nA lane.\n\n<!-- old words: begin -->\nA seat.\n<!-- old words: end -->\n\n`Plan.batch`\n"
    assert found_in(words, tmp_path, "docs/page.md", page) == [("Plan.batch, Plan.number", 9), ("lane", 3)]


def test_the_line_is_that_of_the_word(words: ModuleType, tmp_path: Path) -> None:
    text = '"""One.\n\nA batch has\na seat.\n"""\n\n# First\n# a lane\nx = 1  # another lane\n'
    assert found_in(words, tmp_path, CORE, text) == [("lane", 8), ("lane", 9), ("seat", 4)]


def test_exit_code_and_list(words: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found_in(words, tmp_path, CORE, "clean = 1\n")
    assert words.main([], root=tmp_path) == 0
    assert "0 uses of 0 old words" in capsys.readouterr().out
    found_in(words, tmp_path, CORE, "seat = in_flight\n")
    assert words.main(["--list"], root=tmp_path) == 1
    assert f"{CORE}:1: seat: seat" in capsys.readouterr().out
    assert words.main(["--list", "--word", "lane"], root=tmp_path) == 0
    words.main(["--allowed"], root=tmp_path)
    assert "'in flight' is the field's word" in capsys.readouterr().out


def test_every_exception_has_a_reason(words: ModuleType) -> None:
    assert all(allowed.why for word in words.WORDS for allowed in word.allowed)
