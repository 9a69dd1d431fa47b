"""The data sets of prepare: values, ids, order, splits and histories, on small logs whose result is known."""

import hashlib
import math
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotrows.data.prepare import prepare
from hotrows.data.sample import write_avazu_log, write_criteo_log, write_taobao_log

from .logs import SHARED, criteo_line, describe, read_split, read_vocabulary, write_lines

real_samples = pytest.mark.skipif(not SHARED.is_dir(), reason="the real samples are not here")


@pytest.fixture(scope="module")
def criteo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("criteo")
    log = directory / "log.txt"
    write_criteo_log(log, 3_000, seed=1)
    prepare("criteo", log, directory / "out", min_count=3, valid=0.1, test=0.2)
    return log, directory / "out"


def test_every_sample_has_the_values_of_its_line(criteo: tuple[Path, Path]) -> None:
    log, out = criteo
    lines = [line.split("\t") for line in log.read_text().splitlines()]
    ids = [{value: id for value, id, _ in read_vocabulary(out, f"C{i}") if value is not None} for i in range(1, 27)]
    found = pa.concat_tables([read_split(out, split) for split in ("train", "valid", "test")]).to_pylist()
    assert len(found) == len(lines)
    for fields, sample in zip(lines, found, strict=True):
        assert sample["label"] == float(fields[0])
        for i in range(1, 14):
            value = max(int(fields[i] or 0), 0)
            assert sample[f"I{i}"] == pytest.approx(math.log1p(value), rel=1e-6)
        for i in range(1, 27):
            text = fields[13 + i]
            assert sample[f"C{i}"] == (ids[i - 1].get(text, 0) if text else 1)


def test_ids_fall_in_frequency_of_the_training_split_alone(criteo: tuple[Path, Path]) -> None:
    log, out = criteo
    values = [line.split("\t")[13 + 4] for line in log.read_text().splitlines()[:2_100]]
    counts = Counter(values)
    missing = counts.pop("", 0)
    kept = sorted(((value, n) for value, n in counts.items() if n >= 3), key=lambda one: (-one[1], one[0]))
    rare = sum(n for n in counts.values() if n < 3)
    numbered = [(value, id, n) for id, (value, n) in enumerate(kept, start=2)]
    assert read_vocabulary(out, "C4") == [(None, 0, rare), (None, 1, missing), *numbered]
    assert read_split(out, "train")["C4"].to_pylist().count(2) == kept[0][1]


def test_description_and_types(criteo: tuple[Path, Path]) -> None:
    _, out = criteo
    described = describe(out)
    assert described["format"] == 1
    assert {name: split["num_samples"] for name, split in described["splits"].items()} == {
        "train": 2_100,
        "valid": 300,
        "test": 600,
    }
    assert described["schema"]["dense"] == [f"I{i}" for i in range(1, 14)]
    column = described["schema"]["categorical"][0]
    assert column == {"name": "C1", "num_ids": len(read_vocabulary(out, "C1")), "table": "C1", "max_length": 1}
    schema = read_split(out, "train").schema
    assert [schema.field(name).type for name in ("label", "I1", "C1")] == [pa.float32(), pa.float32(), pa.int32()]
    vocabulary = pq.read_schema(out / "vocabulary" / "C1.parquet")
    assert [(field.name, field.type) for field in vocabulary] == [
        ("value", pa.string()), ("id", pa.int32()), ("count", pa.int64()),
    ]  # fmt: skip
    on_disk = {path.relative_to(out).as_posix(): path for path in out.rglob("*.parquet")}
    assert described["checksums"] == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in on_disk.items()
    }
    assert {path.name for path in out.iterdir()} == {"dataset.json", "train", "valid", "test", "vocabulary"}


def test_random_split_is_drawn_by_the_seed(tmp_path: Path) -> None:
    config = tmp_path / "clicks.toml"
    config.write_text('label = "y"\ncategorical = ["c"]\n')
    log = write_lines(tmp_path / "log.csv", ["y,c", *(f"1,{row}" for row in range(3_000))])
    samples = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        options = {"valid": 0.1, "test": 0.3, "seed": seed, "min_count": 1}
        report = prepare("table", log, tmp_path / name, config=config, split="random", **options)
        assert sum(report.num_samples.values()) == 3_000
        assert abs(report.num_samples["test"] - 900) < 100
        samples[name] = [value for value, _, _ in read_vocabulary(tmp_path / name, "c")]
    assert samples["a"] == samples["b"]
    # A row is in training with probability 0.6, so two independent seeds share 0.36 of all rows.
    assert abs(len(set(samples["a"]) & set(samples["c"])) - 0.36 * 3_000) < 120


def test_days_are_files_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    days = tmp_path / "days"
    days.mkdir()
    for day in (2, 10, 1):
        suffix = ".gz" if day == 2 else ""
        write_lines(days / f"day_{day}{suffix}", [criteo_line(0, {1: day * 100 + row}, C1="a") for row in range(10)])
    prepare("criteo", days, tmp_path / "out", split="day", valid=0.1, test=0)
    expected = {"train": [*range(100, 110), *range(200, 207)], "valid": range(207, 210), "test": range(1000, 1010)}
    for split, numbers in expected.items():
        found = read_split(tmp_path / "out", split)["I1"].to_pylist()
        assert found == pytest.approx([math.log1p(number) for number in numbers])


def test_integers_are_clipped_and_missing_ones_are_zero(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log", [criteo_line(1, {1: -3, 2: 0, 3: 7}, C1="3e814130") for _ in range(4)])
    prepare("criteo", log, tmp_path / "out", valid=0, test=0.25)
    sample = read_split(tmp_path / "out", "train").to_pylist()[0]
    assert (sample["I1"], sample["I2"], sample["I3"], sample["I4"]) == pytest.approx((0, 0, math.log(8), 0))
    assert read_vocabulary(tmp_path / "out", "C1")[2:] == [("3e814130", 2, 3)]
    assert describe(tmp_path / "out")["splits"]["valid"] == {"num_samples": 0, "files": []}


def test_avazu_by_day_with_categories_of_the_hour(tmp_path: Path) -> None:
    log = tmp_path / "avazu.csv.gz"
    write_avazu_log(log, 720)
    report = prepare("avazu", log, tmp_path / "out", min_count=1, split="day", valid=0.1, test=0)
    assert report.num_samples == {"train": 408, "valid": 72, "test": 240}
    assert {value for value, _, _ in read_vocabulary(tmp_path / "out", "weekday")} == {
        None,
        "2",
        "3",
    }  # Tuesday and Wednesday
    assert len(read_vocabulary(tmp_path / "out", "hour_of_day")) == 2 + 24
    assert set(read_split(tmp_path / "out", "test")["weekday"].to_pylist()) == {
        0
    }  # Thursday is not in the training split
    assert describe(tmp_path / "out")["schema"]["dense"] == []


def test_a_log_out_of_order_is_put_in_order(tmp_path: Path) -> None:
    config = tmp_path / "clicks.toml"
    config.write_text('label = "y"\ncategorical = ["c"]\ndense = ["x"]\ntime = "t"\nlog_scale = false\n')
    rows = ["x,y,t,c", *(f'{x},1,{(x * 7) % 20},"v,{x}"' for x in range(20))]
    log = write_lines(tmp_path / "log.csv", rows)
    prepare("table", log, tmp_path / "out", config=config, valid=0.25, test=0.25, min_count=1)
    found = [x for split in ("train", "valid", "test") for x in read_split(tmp_path / "out", split)["x"].to_pylist()]
    assert found == sorted(range(20), key=lambda x: (x * 7) % 20)
    assert ("v,0", 2, 1) in read_vocabulary(tmp_path / "out", "c")


def test_table_from_parquet(tmp_path: Path) -> None:
    config = tmp_path / "clicks.toml"
    config.write_text('label = "y"\ncategorical = ["c"]\ndense = ["x"]\n')
    table = pa.table({"y": [True, False] * 10, "x": [1, None] * 10, "c": [7, None] * 10, "more": range(20)})
    pq.write_table(table, tmp_path / "log.parquet")
    prepare("table", tmp_path / "log.parquet", tmp_path / "out", config=config)
    assert describe(tmp_path / "out")["name"] == "clicks"
    first, second = read_split(tmp_path / "out", "train").to_pylist()[:2]
    assert first == {"label": 1.0, "x": pytest.approx(math.log(2)), "c": 2}
    assert second == {"label": 0.0, "x": 0.0, "c": 1}


def test_taobao_histories_are_the_users_past(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    write_taobao_log(log, 2_000, seed=3)
    prepare("taobao", log, tmp_path / "out", min_count=1, valid=0.1, test=0.2)
    rows = [line.split(",") for line in log.read_text().splitlines()]
    rows = sorted(rows, key=lambda row: int(row[4]))
    columns = describe(tmp_path / "out")["schema"]["categorical"]
    assert [(column["name"], column["table"], column["max_length"]) for column in columns] == [
        ("user", "user", 1), ("item", "item", 1), ("item_history", "item", 20),
        ("category", "category", 1), ("category_history", "category", 20),
    ]  # fmt: skip
    ids = {value: id for value, id, _ in read_vocabulary(tmp_path / "out", "item") if value is not None}
    past: dict[str, list[int]] = {}
    samples = [
        sample for split in ("train", "valid", "test") for sample in read_split(tmp_path / "out", split).to_pylist()
    ]
    for row, sample in zip(rows, samples, strict=True):
        before = past.setdefault(row[0], [])
        assert sample["label"] == (0 if row[3] == "pv" else 1)
        assert sample["item"] == ids.get(row[1], 0)
        assert sample["item_history"] == before[-20:]
        before.append(sample["item"])
    training = read_split(tmp_path / "out", "train").to_pylist()
    looked_up = Counter(id for sample in training for id in (sample["item"], *sample["item_history"]))
    assert {id: n for _, id, n in read_vocabulary(tmp_path / "out", "item") if n} == looked_up
    users = Counter(sample["user"] for sample in training)  # a user is looked up once, however long the history is
    assert {id: n for _, id, n in read_vocabulary(tmp_path / "out", "user") if n} == users


def test_shards_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotrows.data.prepare.pipeline.ROWS_PER_SHARD", 20)
    log = write_lines(tmp_path / "log", [criteo_line(0, {1: row}, C1="a") for row in range(30)])
    seen: list[tuple[str, float]] = []
    prepare("criteo", log, tmp_path / "out", valid=0, test=0.1, progress=lambda *done: seen.append(done))
    assert describe(tmp_path / "out")["splits"]["train"]["files"] == [f"train/part-0000{i}.parquet" for i in range(2)]
    found = read_split(tmp_path / "out", "train")["I1"].to_pylist()
    assert found == pytest.approx([math.log1p(row) for row in range(27)])
    assert [phase for phase, done in seen if done == 1.0] == ["reading", "counting", "writing", "finishing"]


@real_samples
@pytest.mark.parametrize(
    ("kind", "file", "num_rows"),
    [
        ("criteo", "criteo_1tb_day0_head_10k.txt.gz", 10_000),
        ("avazu", "avazu_53k.csv.gz", 53_140),
        ("taobao", "taobao_userbehavior_users.csv.gz", 103_896),
    ],
)
def test_real_samples(kind: str, file: str, num_rows: int, tmp_path: Path) -> None:
    report = prepare(kind, SHARED / file, tmp_path / "out", test=0.2)
    assert report.num_rows == sum(report.num_samples.values()) == num_rows
    assert report.num_skipped == 0
