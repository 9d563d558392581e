"""The command line: parse, call, print."""

from dkrr.cli.commands import dkrr, main

__all__ = ["dkrr", "main"]
