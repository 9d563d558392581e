"""Text for people to read: without characters that act on a terminal, and without secrets in URLs.

Names of columns, classes and files, and messages of libraries, may come from people who are not trusted.
"""

import re
import unicodedata

_URL = re.compile(r"://[^\s'\"]+")


def printable(text: str) -> str:
    r"""Text with escapes (``\u001b``) in place of all characters that are not shown as they are; lines are kept.

    These are control characters, marks of format and direction (U+202E), lone surrogates, characters of private use,
    and separators of lines and paragraphs. Text of JSON in ASCII keeps its value.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if _is_shown(character) else _escape(character) for character in text)


def one_line(text: str) -> str:
    """Printable text with spaces in place of line breaks: it cannot pass for several lines."""
    return printable(text).replace("\n", " ")


def safe_message(text: str) -> str:
    """Printable text, and its URLs without names, passwords and queries, which may give access."""
    return printable(_URL.sub(_without_secrets, text) if "://" in text else text)


def _is_shown(character: str) -> bool:
    return character == "\n" or character.isprintable() or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _without_secrets(found: re.Match[str]) -> str:
    url = found[0][len("://") :]
    user, at, rest = url.rpartition("@")
    # A password may hold any character, so one that is not quoted may seem to be of the path.
    if at and (":" in user or not re.search("[/?#]", user)):
        url = f"***@{rest}"
    place, _, query = url.partition("?")
    return f"://{place}?..." if query else f"://{url}"
