"""Stands in for CUDA in the tests that drive captured steps on the CPU."""

import pytest

from tests.graphs.fake_cuda import FakeCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)
