"""Text that may be printed: see `dkrr.text`."""

from dkrr.text import one_line, printable, safe_message

__all__ = ["one_line", "printable", "safe_message"]
