"""Records: typed fields at byte offsets, aligned to 16 bytes."""

import copy
import pickle
import re
import struct

import pytest
import torch

from hotrows.stores import Field, RecordLayout, StateField

COUNT = StateField("count", per_row=True, dtype=torch.int32)
HALF = StateField("half", dtype=torch.bfloat16)
MIXED = RecordLayout.packed(5, (StateField("exp_avg"), COUNT, HALF), dtype=torch.bfloat16)


def test_layout_of_adam() -> None:
    layout = RecordLayout.packed(6, (StateField("exp_avg"), StateField("exp_avg_sq")))
    assert layout.columns("weight") == slice(0, 6)
    assert layout.columns("exp_avg_sq") == slice(12, 18)
    assert layout.words == 20
    assert layout.num_bytes == 80
    assert layout.dim == 6
    assert [field.name for field in layout.state] == ["exp_avg", "exp_avg_sq"]


def test_layout_of_one_number_per_row() -> None:
    layout = RecordLayout.packed(8, (StateField("sum", per_row=True),))
    assert layout.columns("sum") == slice(8, 9)
    assert layout.words == 12


def test_each_field_is_aligned_for_its_dtype() -> None:
    assert MIXED.fields == (
        Field("weight", torch.bfloat16, 5, 0),
        Field("exp_avg", torch.float32, 5, 12),  # the weights end at byte 10
        Field("count", torch.int32, 1, 32),
        Field("half", torch.bfloat16, 5, 36),
    )
    assert MIXED.field("half").end == 46
    assert (MIXED.num_bytes, MIXED.words) == (48, 12)
    for twin in (copy.deepcopy(MIXED), pickle.loads(pickle.dumps(MIXED))):
        assert twin == MIXED


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_records_are_aligned_to_16_bytes(dtype: torch.dtype) -> None:
    for dim in range(1, 40):
        assert RecordLayout.packed(dim, dtype=dtype).num_bytes % 16 == 0


def test_fields_of_raw_bytes_are_read_and_written_by_name() -> None:
    raw = torch.zeros(3, MIXED.num_bytes, dtype=torch.uint8)
    raw[1, 32:36] = torch.tensor(list(struct.pack("<i", -7)), dtype=torch.uint8)
    raw[1, 12:20] = torch.tensor(list(struct.pack("<ff", 1.5, -2.0)), dtype=torch.uint8)
    assert MIXED.values(raw, "count").tolist() == [[0], [-7], [0]]
    assert MIXED.values(raw, "exp_avg")[1, :2].tolist() == [1.5, -2.0]

    MIXED.values(raw, "weight")[2] = torch.arange(5.0)
    MIXED.values(raw, "half").fill_(3.0)
    assert struct.unpack("<f", b"\0\0" + bytes(raw[2, 8:10].tolist()))[0] == 4.0
    assert MIXED.values(raw, "count").tolist() == [[0], [-7], [0]]

    words = raw.view(torch.float32)  # as which stores and caches hold them
    assert words.shape == (3, MIXED.words)
    assert MIXED.values(words, "half").eq(3).all()
    assert MIXED.values(words, "half").dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"records are torch.float32 \[3, 11\], give 48 bytes for each record"):
        MIXED.values(words[:, :11].contiguous(), "half")


def test_kernels_get_float32_fields_alone() -> None:
    assert MIXED.columns("exp_avg") == slice(3, 8)
    with pytest.raises(TypeError, match=r"'weight' of the record is torch.bfloat16: kernels compute on torch.float32"):
        MIXED.columns("weight")


def test_unknown_fields_are_named() -> None:
    with pytest.raises(KeyError, match=r"no field 'bias' in a record of \['weight'\]"):
        RecordLayout.packed(4).columns("bias")


F32 = torch.float32


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("a", F32, 4, 0)], "give each name once, and 'weight' among them"),
        ([("weight", F32, 4, 0), ("weight", F32, 4, 16)], "give each name once"),
        ([("weight", F32, 4, 0), ("a", F32, 1, 18)], "byte 18, which is no multiple of the 4 bytes"),
        ([("weight", F32, 4, 4), ("a", torch.int32, 2, 0)], "'weight' begins at byte 4, before 'a' ends at byte 8"),
        ([("weight", F32, 0, 0)], "has 0 numbers at byte 0"),
        ([("weight", F32, 4, -4)], "has 4 numbers at byte -4"),
    ],
)
def test_impossible_layouts_are_refused(fields: list[tuple], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        RecordLayout(tuple(Field(*each) for each in fields))
