"""The operations on rows, one folder each: `reference.py` (plain PyTorch, the definition) beside `kernel.py` (Triton).

Each folder's `__init__` dispatches by device: CUDA tensors go to the kernel, all others to the reference. Shapes are
static on CUDA: arrays are as long as the batch has lookups, and a count on the device says how much of them is filled,
so no operation waits for the host. On the CPU reading a count is free, and the references work on the filled part only.

Shapes: B batch, F features, D dim, N lookups, U unique rows (U ≤ N), S slots, W words of a record, R rows in all.
"""
