"""Training: from a run file to a trained, measured model."""
