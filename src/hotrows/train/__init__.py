"""Trains and evaluates a model as a run file describes it."""
