"""Costs of the ways to solve: recipes of primitives, and the details of strategies that execution reads too."""

import dkrr.planning  # noqa: F401  (some of its modules still import costs from here)
