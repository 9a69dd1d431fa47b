"""Data sets: prepared logs and synthetic data, behind one protocol (`schema.py`)."""
