"""Copies from the host, for every kind of source."""

import pytest
import torch

from hotrows.runtime.host_copy import HostCopy


@pytest.mark.parametrize("in_stream", [False, True])
@pytest.mark.parametrize("kind", ["contiguous", "pinned", "with gaps", "of another type", "on the device", "empty"])
def test_copies(kind, in_stream, device):
    source = torch.randperm(26 * 300).view(300, 26)[: 0 if kind == "empty" else 300]
    expected = source.clone()
    if kind == "pinned" and device.type == "cuda":
        source = source.pin_memory()
    if kind == "with gaps":
        source = torch.cat([source, source], 1)[:, :26]
    if kind == "of another type":
        source = source.int()
    if kind == "on the device":
        source = source.to(device)
    target = torch.full((len(expected), 26), -1, device=device)
    stream = torch.cuda.Stream() if in_stream and device.type == "cuda" else None
    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream())
    HostCopy(target).copy(source, stream)
    if stream is not None:
        stream.synchronize()
    assert torch.equal(target.cpu(), expected)
