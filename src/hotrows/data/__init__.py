"""Where batches come from: prepared logs and synthetic data, behind one protocol (`schema.py`)."""
