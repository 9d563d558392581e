"""The command line: parse, call, print."""

from dkrr.cli.main import dkrr, main

__all__ = ["dkrr", "main"]
