"""Algorithms on tiles; each module states its cost beside its code."""
