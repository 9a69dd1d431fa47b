"""These tests call the kernels themselves, which take CPU tensors in the interpreter only."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def device(device: torch.device) -> torch.device:
    if device.type == "cpu" and torch.cuda.is_available():
        pytest.skip("kernels run on the GPU of this machine, not in the interpreter")
    return device


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """What torch.empty returns is NaN or a huge number, so that nothing left unwritten passes for zero."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)
