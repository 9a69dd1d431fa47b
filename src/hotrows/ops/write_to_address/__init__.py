"""Copy to an address that the host writes: so a recording, which knows its own memory alone, answers in new memory."""
