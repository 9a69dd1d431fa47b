"""Strategies: named compositions of the cache's parts."""
