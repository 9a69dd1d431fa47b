"""Damage of files: no flipped bit of a prepared data set or of a compressed log may be taken for data."""

import gzip
import json
import logging
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from hotrows.data.checksums import sha256_of_description
from hotrows.data.dataset import open_dataset
from hotrows.data.prepare import BadInputError, prepare
from hotrows.data.prepare.gzip_check import check_gzip
from hotrows.data.prepare.output import write_description
from hotrows.data.verify import verify

from .logs import describe, read_split, read_vocabulary, write_lines
from .prepared import PLAIN, SEQUENCES, write_prepared

NUM_FLIPS = {"data set": 120, "gzip": 80}
CONFIG = 'label = "y"\ncategorical = ["c"]\ndense = ["x"]\n'


def write_checksums(directory: Path) -> Path:
    write_description(directory, {k: v for k, v in describe(directory).items() if k != "checksums"})
    return directory


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    write_prepared(tmp_path / "data", SEQUENCES, {"train": 400, "valid": 60, "test": 60})
    return write_checksums(tmp_path / "data")


def read_all(directory: Path) -> list[torch.Tensor]:
    data = open_dataset(directory)
    found = list(data.counts().values())
    for split in ("train", "valid", "test"):
        for batch in data.loader(split, 64):
            ids = batch.ids
            found += [batch.label, batch.dense, *((ids,) if isinstance(ids, torch.Tensor) else (ids.values,))]
    return found


def flip(path: Path, bit: int) -> bytes:
    """Flip one bit of a file, and return what the file was."""
    original = path.read_bytes()
    damaged = bytearray(original)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    return original


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


def test_no_flipped_bit_of_a_data_set_is_silent(prepared: Path) -> None:
    random = np.random.default_rng(5)
    files = sorted(path for path in prepared.rglob("*") if path.is_file())
    shards = [path for path in files if path.parent.name in ("train", "valid", "test")]
    expected = read_all(prepared)
    outcomes = Counter[str]()
    for number in range(NUM_FLIPS["data set"]):
        # Most flips are in shards, the others in the vocabularies and in dataset.json.
        chosen = shards if number % 4 else [path for path in files if path not in shards]
        path = chosen[random.integers(len(chosen))]
        original = flip(path, int(random.integers(8 * path.stat().st_size)))
        try:
            outcomes["unchanged" if same(read_all(prepared), expected) else "silent"] += 1
        except ValueError as error:
            outcomes["detected" if path.name in str(error) else "detected without the file's name"] += 1
        path.write_bytes(original)
    print(f"flips in a data set: {dict(outcomes)}")
    assert outcomes == {"detected": NUM_FLIPS["data set"]}
    assert same(read_all(prepared), expected)


def test_no_flipped_bit_of_a_compressed_log_is_silent(tmp_path: Path) -> None:
    """A flip in a header field that carries no data, such as the time, may be accepted. The data must be the same."""
    random = np.random.default_rng(6)
    config = tmp_path / "clicks.toml"
    config.write_text(CONFIG)
    log = tmp_path / "log.csv.gz"
    lines = [f"{row % 2},{random.integers(30)},{random.integers(1000)}\n" for row in range(300)]
    members = [
        gzip.compress(text.encode(), mtime=0) for text in ("y,c,x\n", "".join(lines[:150]), "".join(lines[150:]))
    ]
    log.write_bytes(b"".join(members))
    headers = {start + byte for start in (0, len(members[0]), len(members[0] + members[1])) for byte in range(10)}
    prepare("table", log, tmp_path / "expected", config=config)
    outcomes = Counter[str]()
    for number in range(NUM_FLIPS["gzip"]):
        # Headers are few of all bytes, so they get a quarter of the flips.
        byte = int(random.integers(log.stat().st_size)) if number % 4 else int(random.choice(sorted(headers)))
        original = flip(log, 8 * byte + int(random.integers(8)))
        out = tmp_path / "out"
        try:
            prepare("table", log, out, config=config)
            equal = all(read_split(out, s).equals(read_split(tmp_path / "expected", s)) for s in ("train", "test"))
            equal = equal and read_vocabulary(out, "c") == read_vocabulary(tmp_path / "expected", "c")
            outcomes[("in the header, same data" if byte in headers else "unchanged") if equal else "silent"] += 1
            shutil.rmtree(out)
        except BadInputError as error:
            outcomes["detected" if str(log) in str(error) else "detected without the file's name"] += 1
            assert not out.exists()
        log.write_bytes(original)
    print(f"flips in a compressed log: {dict(outcomes)}")
    assert set(outcomes) == {"detected", "in the header, same data"}
    assert sum(outcomes.values()) == NUM_FLIPS["gzip"]


def gz(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


WHOLE = gz("0,a,1\n" * 500)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gz("y,c,x\n") + WHOLE[:-6] + bytes([WHOLE[-6] ^ 1]) + WHOLE[-5:], "damaged .gzip member 2: .*data check"),
        (gz("y,c,x\n") + WHOLE[:-4] + bytes([WHOLE[-4] ^ 1]) + WHOLE[-3:], "damaged .gzip member 2: .*length check"),
        (gz("y,c,x\n") + WHOLE[:-5], r"line [\d,]+: the compressed file breaks off"),
        (gz("y,c,x\n") + WHOLE + WHOLE[:4], r"line [\d,]+: the compressed file breaks off"),
        (gz("y,c,x\n") + WHOLE + b"garbage", "gzip member 2 is followed by bytes that are no gzip member, 7 before"),
        (gz("y,c,x\n") + WHOLE + bytes(512), "gzip member 2 is followed by bytes that are no gzip member, 512 before"),
        (b"y,c,x\n0,a,1\n", "its name ends in .gz, and it does not begin as a gzip file"),
    ],
)
def test_a_compressed_log_is_checked_to_its_end(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "clicks.toml").write_text(CONFIG)
    (tmp_path / "log.csv.gz").write_bytes(data)
    with pytest.raises(BadInputError, match=rf"log\.csv\.gz.*{message}.*expected a complete \.gz"):
        prepare("table", tmp_path / "log.csv.gz", tmp_path / "out", config=tmp_path / "clicks.toml")
    assert not (tmp_path / "out").exists()


def test_damage_is_reported_rather_than_the_lines_that_it_makes_unreadable(tmp_path: Path) -> None:
    log = tmp_path / "log.csv.gz"
    (tmp_path / "clicks.toml").write_text(CONFIG)
    data = bytearray(gzip.compress(b"y,c,x\n" + b"0,a,1\n" * 500, compresslevel=0, mtime=0))
    data[200:204] = b"oops"
    log.write_bytes(data)
    with pytest.raises(BadInputError, match="the compressed data is damaged"):
        prepare("table", log, tmp_path / "out", config=tmp_path / "clicks.toml", on_error="skip")


def test_a_compressed_log_of_several_members_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "clicks.toml").write_text(CONFIG)
    log = tmp_path / "log.csv.gz"
    log.write_bytes(gz("y,c,x\n") + gz("0,a,1\n" * 50) + gz("") + gz("1,b,2\n" * 50))
    check_gzip(log)
    report = prepare("table", log, tmp_path / "out", config=tmp_path / "clicks.toml")
    assert report.num_rows == 100


def test_every_byte_of_a_shard_is_in_a_section(tmp_path: Path) -> None:
    """Also of shards with several row groups, as DuckDB writes them."""
    (tmp_path / "clicks.toml").write_text(CONFIG)
    log = write_lines(tmp_path / "log.csv", ["y,c,x", *(f"{row % 2},v{row % 9},{row}" for row in range(150_000))])
    prepare("table", log, tmp_path / "out", config=tmp_path / "clicks.toml")
    described = describe(tmp_path / "out")["row_group_checksums"]
    assert set(described) == {f"{split}/part-00000.parquet" for split in ("train", "valid", "test")}
    for name, sections in described.items():
        path = tmp_path / "out" / name
        assert len(sections) == pq.read_metadata(path).num_row_groups + 1
        assert sections[-1][0] == path.stat().st_size
    assert len(described["train/part-00000.parquet"]) == 3
    assert (
        sum(len(batch.label) for batch in open_dataset(tmp_path / "out").loader("train", 1000, shuffle=True)) == 105_000
    )


def test_a_row_group_is_compared_before_it_is_read_and_once(prepared: Path) -> None:
    loader = open_dataset(prepared).loader("train", 16)
    path = prepared / "train/part-00002.parquet"
    flip(path, 8 * 500)
    batches = iter(loader)
    for _ in range(6):  # the first two shards
        next(batches)
    with pytest.raises(ValueError, match=r"part-00002\.parquet: this shard is damaged, bytes [\d,]+ to .*prepare the"):
        list(batches)


def test_a_data_set_without_checksums_opens_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_prepared(tmp_path / "data", PLAIN, {"train": 100})
    with caplog.at_level(logging.WARNING, logger="hotrows"):
        for _ in range(2):
            assert len(list(open_dataset(tmp_path / "data").loader("train", 10))) == 10
    assert [record.message.split(" was prepared")[0] for record in caplog.records] == [str(tmp_path / "data")]


def test_an_edited_description_is_refused(prepared: Path) -> None:
    path = prepared / "dataset.json"
    described = json.loads(path.read_text())
    described["schema"]["categorical"][0]["num_ids"] += 1
    path.write_text(json.dumps(described))
    with pytest.raises(ValueError, match=r"dataset\.json is damaged or was edited"):
        open_dataset(prepared)


@pytest.mark.parametrize(
    ("section", "name"),
    [("splits", "../train/part-00000.parquet"), ("splits", "/x.parquet"), ("vocabularies", "train/../../x.parquet")],
)
def test_a_description_that_names_a_file_outside_the_directory(section: str, name: str, prepared: Path) -> None:
    described = describe(prepared)
    if section == "splits":
        described["splits"]["train"]["files"][0] = name
    else:
        described["vocabularies"] = {"item": name}
    described["checksum"] = sha256_of_description(described)
    (prepared / "dataset.json").write_text(json.dumps(described))
    message = f"dataset.json names the file '{name}', which is outside its directory: prepare the data again"
    for use in (open_dataset, verify):
        with pytest.raises(ValueError, match=message):
            use(prepared)


def test_verify_lists_every_damaged_file(prepared: Path) -> None:
    assert verify(prepared).damaged == ()
    flip(prepared / "train/part-00001.parquet", 999)
    (prepared / "vocabulary/item.parquet").unlink()
    (prepared / "test/part-00000.parquet").write_bytes(b"PAR1")
    done: list[float] = []
    report = verify(prepared, lambda phase, share: done.append(share))
    assert {damage.file: damage.problem.split(",")[0] for damage in report.damaged} == {
        "train/part-00001.parquet": "its contents have changed",
        "vocabulary/item.parquet": "this file is missing",
        "test/part-00000.parquet": "it has 4 bytes",
    }
    assert done == sorted(done)
    assert done[-1] == 1.0
