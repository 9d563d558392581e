"""Executing a plan: from checked data to a fitted value."""
