"""Copies to an address that the kernel reads from memory."""

import pytest
import torch

from hotrows.ops.write_to_address.kernel import write_to_address


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
@pytest.mark.parametrize("shape", [(), (3,), (5, 7), (2000,)])
def test_writes_to_the_address(shape, dtype, device, random):
    given = torch.randint(0, 2, shape, generator=random).to(dtype).to(device)
    memory = torch.zeros(4, *shape, dtype=dtype, device=device)
    address = torch.zeros(1, dtype=torch.int64, pin_memory=device.type == "cuda")
    for index in (2, 0):
        address[0] = memory[index].data_ptr()
        write_to_address(given, address)
        if device.type == "cuda":
            torch.cuda.synchronize()
    assert torch.equal(memory[2], given)
    assert torch.equal(memory[0], given)
    assert not memory[[1, 3]].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool])
def test_source_may_be_unaligned(dtype, device, random):
    given = torch.randint(0, 2, (9,), generator=random).to(dtype).to(device)[1:5]
    memory = torch.zeros_like(given)
    address = torch.tensor([memory.data_ptr()])
    write_to_address(given, address.pin_memory() if device.type == "cuda" else address)
    assert torch.equal(memory, given)
