"""Bytes and seconds: see `dkrr.text` and `dkrr.values`."""

from dkrr.text import format_bytes, format_count, format_seconds
from dkrr.values import parse_bytes

__all__ = ["format_bytes", "format_count", "format_seconds", "parse_bytes"]
