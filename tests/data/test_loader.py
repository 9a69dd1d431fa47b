"""The loader of prepared shards: every sample once, in an order of the seed, from any position."""

import gc
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hotrows.batch import Batch, Jagged
from hotrows.data.block import Block
from hotrows.data.dataset import PreparedDataSet
from hotrows.data.loader import ShardLoader
from hotrows.data.schema import Schema
from hotrows.data.shards import BlockReader, list_row_groups
from hotrows.data.share import Share
from tests.data.prepared import PLAIN, SEQUENCES, write_prepared

NUM_SAMPLES = 203  # these are 13 row groups in 5 shards; the last row group and shard are shorter


class Prepared:
    """A directory, its data set, and the table it was written from."""

    def __init__(self, directory: Path, schema: Schema) -> None:
        self.directory = directory
        self.train = write_prepared(directory, schema, {"train": NUM_SAMPLES, "valid": 5})["train"]
        self.dataset = PreparedDataSet(directory)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return Prepared(tmp_path_factory.mktemp("plain"), PLAIN)


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return Prepared(tmp_path_factory.mktemp("sequences"), SEQUENCES)


def tensors(batch: Batch) -> list[Tensor]:
    ids = [batch.ids.values, batch.ids.lengths] if isinstance(batch.ids, Jagged) else [batch.ids]
    return [batch.dense, *ids, batch.label]


def assert_same(left: list[Batch], right: list[Batch]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))


def sample_numbers(batches: list[Batch]) -> list[int]:
    return [int(x) for batch in batches for x in batch.dense[:, 0]]


def check_contents(batch: Batch, table: pa.Table, schema: Schema) -> None:
    """Each sample of the batch is the row of the table with its number, column by column."""
    rows = table.take(pa.array(batch.dense[:, 0].long().numpy()))
    assert batch.dense.dtype == batch.label.dtype == torch.float32
    assert batch.label.tolist() == rows["label"].to_pylist()
    for j, name in enumerate(schema.dense):
        assert batch.dense[:, j].tolist() == rows[name].to_pylist()
    if isinstance(batch.ids, Jagged):
        assert batch.ids.values.dtype == torch.int64
        assert batch.ids.lengths.shape == (len(schema.categorical), len(batch.label))
        bags = iter(batch.ids.values.split(batch.ids.lengths.flatten().tolist()))
        for column in schema.categorical:
            expected = rows[column.name].to_pylist()
            expected = [[e] for e in expected] if column.max_length == 1 else expected
            assert [next(bags).tolist() for _ in expected] == expected
    else:
        assert batch.ids.dtype == torch.int64
        assert batch.ids.is_contiguous()
        for j, column in enumerate(schema.categorical):
            assert batch.ids[:, j].tolist() == rows[column.name].to_pylist()


@pytest.mark.parametrize("kind", ["plain", "sequences"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7, 16, 48, 64, 500])
def test_batches_have_what_was_written(
    kind: str, shuffle: bool, batch_size: int, request: pytest.FixtureRequest
) -> None:
    prepared: Prepared = request.getfixturevalue(kind)
    loader = prepared.dataset.loader("train", batch_size, shuffle=shuffle)
    batches = list(loader)
    assert len(batches) == len(loader) == -(-NUM_SAMPLES // batch_size)
    assert all(len(batch.label) == batch_size for batch in batches[:-1])
    for batch in batches:
        check_contents(batch, prepared.train, prepared.dataset.schema)
    numbers = sample_numbers(batches)
    assert sorted(numbers) == list(range(NUM_SAMPLES))
    assert (numbers == list(range(NUM_SAMPLES))) is not shuffle


def test_the_order_depends_on_seed_and_epoch_alone(plain: Prepared) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        loader = plain.dataset.loader("train", 10, shuffle=True, seed=seed)
        loader.set_epoch(epoch)
        return sample_numbers(list(loader))

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1, -1) for epoch in (0, 1)}) == 6


def test_shuffling_mixes_row_groups(plain: Prepared) -> None:
    numbers = np.array(sample_numbers(list(plain.dataset.loader("train", 64, shuffle=True))))
    assert len(np.unique(numbers[:16] // 16)) > 2
    assert np.abs(np.diff(numbers) == 1).mean() < 0.2


@settings(deadline=None, max_examples=40)
@given(
    world_size=st.integers(1, 6),
    batch_size=st.integers(1, 90),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    epoch=st.integers(0, 2),
)
def test_ranks_share_the_samples(
    plain: Prepared, world_size: int, batch_size: int, shuffle: bool, drop_last: bool, epoch: int
) -> None:
    numbers: list[int] = []
    lengths = []
    for rank in range(world_size):
        loader = plain.dataset.loader(
            "train", batch_size, shuffle=shuffle, rank=rank, world_size=world_size, drop_last=drop_last
        )
        loader.set_epoch(epoch)
        batches = list(loader)
        assert len(batches) == len(loader)
        assert all(0 < len(batch.label) <= batch_size for batch in batches)
        if drop_last:
            assert all(len(batch.label) == batch_size for batch in batches)
        lengths.append(len(batches))
        numbers += sample_numbers(batches)
    assert len(set(numbers)) == len(numbers)
    assert len(set(lengths)) == 1 or batch_size == 1
    if drop_last:
        assert len(numbers) > NUM_SAMPLES - world_size * (batch_size + 1)
    else:
        assert sorted(numbers) == list(range(NUM_SAMPLES))


@given(
    num_samples=st.integers(0, 10_000),
    batch_size=st.integers(1, 300),
    world_size=st.integers(1, 40),
    drop_last=st.booleans(),
)
def test_shares_are_disjoint_and_cut_evenly(
    num_samples: int, batch_size: int, world_size: int, drop_last: bool
) -> None:
    shares = [Share(num_samples, batch_size, rank, world_size, drop_last) for rank in range(world_size)]
    assert shares[0].start == 0
    assert all(a.stop == b.start for a, b in itertools.pairwise(shares))
    for share in shares:
        bounds = [share.bound(b) for b in range(share.num_batches + 1)]
        assert bounds[0] == 0
        assert all(0 < b - a <= batch_size for a, b in itertools.pairwise(bounds))
        assert bounds[-1] <= share.stop - share.start
        if not drop_last:
            assert bounds[-1] == share.stop - share.start
    if not drop_last:
        assert shares[-1].stop == num_samples
    if drop_last or (batch_size > 1 and num_samples >= world_size):
        assert len({share.num_batches for share in shares}) == 1


@settings(deadline=None, max_examples=40)
@given(data=st.data(), batch_size=st.integers(1, 70), shuffle=st.booleans(), world_size=st.integers(1, 3))
@pytest.mark.parametrize("kind", ["plain", "sequences"])
def test_resumes_at_the_exact_position(
    kind: str,
    request: pytest.FixtureRequest,
    data: st.DataObject,
    batch_size: int,
    shuffle: bool,
    world_size: int,
) -> None:
    dataset = request.getfixturevalue(kind).dataset
    rank = data.draw(st.integers(0, world_size - 1))

    def make() -> ShardLoader:
        loader = dataset.loader("train", batch_size, shuffle=shuffle, seed=3, rank=rank, world_size=world_size)
        assert isinstance(loader, ShardLoader)
        return loader

    loader = make()
    loader.set_epoch(2)
    taken = data.draw(st.integers(0, len(loader)))
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    state = loader.state_dict()
    rest = list(batches)

    resumed = make()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    resumed.set_epoch(2)  # a loop over epochs calls this, and the position must not be lost
    assert_same(list(resumed), rest)
    assert resumed.state_dict() == loader.state_dict()
    resumed.set_epoch(3)
    loader.set_epoch(3)
    assert_same(list(resumed), list(loader))


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_state_counts_batches_handed_out_not_those_read_ahead(plain: Prepared, shuffle: bool) -> None:
    loader = plain.dataset.loader("train", 10, shuffle=shuffle)
    whole = list(loader)
    for count, batch in enumerate(loader, start=1):
        time.sleep(0.005)  # gives the threads time to read ahead
        state = loader.state_dict()
        assert state["batches"] == count
        assert_same([batch], [whole[count - 1]])
        resumed = plain.dataset.loader("train", 10, shuffle=shuffle)
        resumed.load_state_dict(state)
        assert_same(list(resumed), whole[count:])


@pytest.mark.parametrize("kind", ["plain", "sequences"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_have_memory_of_their_own(kind: str, shuffle: bool, request: pytest.FixtureRequest) -> None:
    """The memory of blocks is reused. That must not change a batch, and writing to a batch must not change a block."""
    dataset = request.getfixturevalue(kind).dataset
    loader = dataset.loader("train", 16, shuffle=shuffle)
    copies, kept = [], []
    for batch in loader:
        kept.append(tensors(batch))
        copies.append([part.clone() for part in kept[-1]])
    assert all(torch.equal(x, y) for a, b in zip(kept, copies, strict=True) for x, y in zip(a, b, strict=True))
    for batch, expected in zip(loader, copies, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(tensors(batch), expected, strict=True))
        for part in tensors(batch):
            part.fill_(-1)


def test_memory_of_recycled_blocks_is_used_again(plain: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = []
    read = BlockReader.read

    def watched(self: BlockReader, *args: Any) -> Block:
        block = read(self, *args)
        addresses.append(block.rows.__array_interface__["data"][0])
        return block

    monkeypatch.setattr(BlockReader, "read", watched)
    for _ in plain.dataset.loader("train", 16):
        time.sleep(0.002)
    assert len(addresses) == 13
    assert len(set(addresses)) <= 4  # two are read at the same time, one is ready, one is in use


def test_a_new_iterator_begins_the_epoch_anew(plain: Prepared) -> None:
    loader = plain.dataset.loader("train", 20, shuffle=True)
    first = next(iter(loader))
    assert_same([next(iter(loader))], [first])
    assert loader.state_dict()["batches"] == 1


def test_a_state_of_another_loader_is_refused(plain: Prepared) -> None:
    state = plain.dataset.loader("train", 20, shuffle=True, seed=1).state_dict()
    with pytest.raises(ValueError, match=r"batch_size was 20 and is 10; seed was 1 and is 2"):
        plain.dataset.loader("train", 10, shuffle=True, seed=2).load_state_dict(state)
    with pytest.raises(ValueError, match="batch 99 of epoch 0, but an epoch has 11 batches"):
        plain.dataset.loader("train", 20, shuffle=True, seed=1).load_state_dict({**state, "batches": 99})


def test_a_small_or_empty_split(plain: Prepared) -> None:
    assert sample_numbers(list(plain.dataset.loader("valid", 100, shuffle=True))) != []
    empty = plain.dataset.loader("test", 100)
    assert len(empty) == 0
    assert list(empty) == []


def test_ids_beyond_the_schema_are_rare(plain: Prepared, sequences: Prepared) -> None:
    def smaller(schema: Schema) -> Schema:
        columns = (type(c)(c.name, 4, c.table, c.max_length) for c in schema.categorical)
        return Schema(schema.dense, tuple(columns))

    for prepared in (plain, sequences):
        full = next(iter(prepared.dataset.loader("train", NUM_SAMPLES)))
        cut = PreparedDataSet(prepared.directory, smaller(prepared.dataset.schema))
        few = next(iter(cut.loader("train", NUM_SAMPLES)))
        known = full.ids.values if isinstance(full.ids, Jagged) else full.ids
        found = few.ids.values if isinstance(few.ids, Jagged) else few.ids
        assert torch.equal(found, torch.where(known < 4, known, 0))


def test_a_negative_id_is_rare(tmp_path: Path) -> None:
    table = write_prepared(tmp_path, PLAIN, {"train": 4})["train"]
    table = table.set_column(table.schema.get_field_index("C2"), "C2", pa.array([-1, 1, 2, 3], pa.int32()))
    pq.write_table(table, tmp_path / "train/part-00000.parquet")
    batch = next(iter(PreparedDataSet(tmp_path).loader("train", 4)))
    assert isinstance(batch.ids, Tensor)
    assert batch.ids[:, 1].tolist() == [0, 1, 2, 3]


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("hotrows-loader")]


def wait_for_no_threads() -> None:
    deadline = time.monotonic() + 10
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not loader_threads()


def test_threads_end_with_the_epoch_and_with_the_iterator(plain: Prepared) -> None:
    loader = plain.dataset.loader("train", 10, shuffle=True)
    list(loader)
    wait_for_no_threads()
    batches: Iterator[Batch] = iter(loader)
    next(batches)
    assert loader_threads()
    del batches
    gc.collect()
    wait_for_no_threads()


def test_reads_ahead_a_bounded_number_of_blocks(plain: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = list_row_groups(dict.fromkeys(sorted((plain.directory / "train").iterdir()), ()), PLAIN)
    loader = ShardLoader(groups, PLAIN, Share(NUM_SAMPLES, 4), threads=2)
    reads = []
    read = BlockReader.read
    monkeypatch.setattr(BlockReader, "read", lambda *args: reads.append(args) or read(*args))
    batches = iter(loader)
    next(batches)
    time.sleep(0.2)
    assert 2 <= len(reads) <= 4  # there are 13 row groups


def damage(path: Path, start: int, stop: int) -> None:
    content = bytearray(path.read_bytes())
    content[start:stop] = b"\xff" * (stop - start)
    path.write_bytes(content)


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    write_prepared(tmp_path, PLAIN, {"train": 100})
    path = tmp_path / "train/part-00001.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"train/part-00001\.parquet: this shard cannot be read, it is truncated"):
        PreparedDataSet(tmp_path).loader("train", 10)


def test_a_shard_damaged_in_the_middle_is_named_to_the_consumer(tmp_path: Path) -> None:
    write_prepared(tmp_path, PLAIN, {"train": 100})
    loader = PreparedDataSet(tmp_path).loader("train", 10)
    path = tmp_path / "train/part-00001.parquet"
    footer = pq.read_metadata(path)
    column = footer.row_group(1).column(0)
    damage(path, column.data_page_offset, column.data_page_offset + 12)
    batches = iter(loader)
    good = [next(batches) for _ in range(6)]  # they are from the row groups before the damaged one
    assert sample_numbers(good) == list(range(60))
    with pytest.raises(ValueError, match=r"train/part-00001\.parquet: this shard cannot be read"):
        list(batches)
    wait_for_no_threads()


def test_a_shard_that_vanished_is_named(tmp_path: Path) -> None:
    write_prepared(tmp_path, PLAIN, {"train": 100})
    loader = PreparedDataSet(tmp_path).loader("train", 10)
    (tmp_path / "train/part-00002.parquet").unlink()
    with pytest.raises(ValueError, match=r"train/part-00002\.parquet: this shard is missing"):
        list(loader)


def test_nulls_are_refused(tmp_path: Path) -> None:
    table = write_prepared(tmp_path, PLAIN, {"train": 4})["train"]
    table = table.set_column(table.schema.get_field_index("C2"), "C2", pa.array([None, 1, 2, 3], pa.int32()))
    pq.write_table(table, tmp_path / "train/part-00000.parquet")
    with pytest.raises(ValueError, match=r"part-00000\.parquet: column 'C2' has nulls"):
        list(PreparedDataSet(tmp_path).loader("train", 4))


def test_a_sequence_longer_than_the_schema_says_is_refused(sequences: Prepared) -> None:
    schema = sequences.dataset.schema
    columns = (type(c)(c.name, c.num_ids, c.table, min(c.max_length, 2)) for c in schema.categorical)
    dataset = PreparedDataSet(sequences.directory, Schema(schema.dense, tuple(columns)))
    with pytest.raises(ValueError, match=r"a sample has 4 ids in column 'past', dataset.json says at most 2"):
        list(dataset.loader("train", 4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 1, "rank": 2, "world_size": 2}, "rank is 2 of 2"),
        ({"batch_size": 1, "split": "all"}, "there is no split 'all': give one of train, valid, test"),
    ],
)
def test_bad_arguments(plain: Prepared, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain.dataset.loader(**{"split": "train", **arguments})  # type: ignore[arg-type]
