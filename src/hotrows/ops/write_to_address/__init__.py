"""Copy to an address that the kernel reads from memory, so that each replay of a CUDA graph can write to new memory."""
