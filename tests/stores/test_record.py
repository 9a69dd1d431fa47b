"""Records: weights, then state, aligned."""

import pytest
import torch

from hotrows.stores import RecordLayout, StateField


def test_layout_of_adam() -> None:
    layout = RecordLayout(6, (StateField("exp_avg"), StateField("exp_avg_sq")))
    assert layout.columns("weight") == slice(0, 6)
    assert layout.columns("exp_avg_sq") == slice(12, 18)
    assert layout.words == 20
    assert layout.num_bytes == 80


def test_layout_of_one_number_per_row() -> None:
    layout = RecordLayout(8, (StateField("sum", per_row=True),))
    assert layout.columns("sum") == slice(8, 9)
    assert layout.words == 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_records_are_aligned_to_16_bytes(dtype: torch.dtype) -> None:
    for dim in range(1, 40):
        assert RecordLayout(dim, dtype=dtype).num_bytes % 16 == 0


def test_unknown_parts_are_named() -> None:
    with pytest.raises(KeyError, match="no 'bias' in a record of"):
        RecordLayout(4).columns("bias")
