"""Devices to test on: where there is no GPU, the kernels run in Triton's interpreter."""

import logging
import os
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest
import torch


def quicken_sorting() -> None:
    """The interpreter knows how to sum a whole array, but takes the xor of `tl.sort` number by number."""
    from triton.language import standard
    from triton.runtime.interpreter import ReduceOps

    slowly = ReduceOps.apply_impl

    def apply_impl(self, inputs):
        if self.combine_fn != standard._xor_combine:
            return slowly(self, inputs)
        found = np.bitwise_xor.reduce(inputs[0].handle.data, axis=self.axis, keepdims=self.keep_dims)
        return self.to_tensor(found, inputs[0].dtype)

    ReduceOps.apply_impl = apply_impl


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so it must be set before any import of one
    if find_spec("triton"):
        quicken_sorting()


if "PYTEST_XDIST_WORKER_COUNT" in os.environ:  # several processes share the cores
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and this machine has none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def same_log_level() -> Iterator[None]:
    """Scripts quieten hotrows' logger for themselves. Tests that run after theirs look at what it logs."""
    logger = logging.getLogger("hotrows")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)
