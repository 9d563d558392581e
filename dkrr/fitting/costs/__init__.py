"""Costs of the ways to solve: recipes of primitives, and the details of strategies that execution reads too."""
