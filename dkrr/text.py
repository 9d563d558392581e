"""Text for people: printable characters, sizes and times in words, and the same as HTML in notebooks and reports.

Names of columns, classes and files, and messages of libraries, may come from people who are not trusted: what is
printed has no characters that act on a terminal and no secrets of URLs, and every text is escaped in HTML, which is
small tables that suit light and dark pages, without scripts or styles.
"""

import html
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Self

_URL = re.compile(r"://[^\s'\"]+")
LINE_COLOUR = "rgba(127,127,127,0.35)"
"""Colour of lines, visible on light and dark pages."""
LABEL_END = 14
"""Column where the text of a line begins, after two spaces and its label."""
MAX_REPR = 80
"""Most characters of the `repr` of a value that explains itself."""
MAX_NAMED = 8
"""Most names that a message lists: of columns, arrays, chunks."""
CELL = "padding:0.1em 0.9em 0.1em 0;text-align:left;vertical-align:top;background:transparent;border:0"


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


def first_names(names: Iterable[str]) -> str:
    """The first of some names, for a message; an iterator is not asked for many more."""
    found = list(islice(names, MAX_NAMED + 1))
    return ", ".join(found[:MAX_NAMED]) + (", ..." if len(found) > MAX_NAMED else "")


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """At most three known names that are near to one that does not exist, whatever their case, the nearest first."""
    by_lower = {one.lower(): one for one in known}
    return [by_lower[one] for one in get_close_matches(name.strip().lower(), list(by_lower), n=3)]


def near_columns(name: str, known: Collection[str]) -> str:
    """The columns near to one that does not exist, for a message, or else only how many there are."""
    return " or ".join(map(repr, near_names(name, known))) or f"one of {plural(len(known), 'column')}"


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


# Sizes and times


def plural(count: int, word: str, ending: str = "s") -> str:
    """Count and word."""
    return f"{format_count(count)} {word}{'' if count == 1 else ending}"


def format_bytes(n_bytes: float) -> str:
    """Number of bytes with a binary unit and three digits: ``1.25 GiB``."""
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 999.5 or unit == "TiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "B" or abs(size) >= 999.5 else f"{size:.3g} {unit}"


def format_seconds(seconds: float) -> str:
    """Duration in its one or two largest units: ``850 ms``, ``12.5 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def format_count(count: int) -> str:
    """Whole number: all its digits below 10¹⁵, otherwise its leading digits and the power of ten."""
    if count < 10**15:
        return f"{count:,}"
    digits = math.log10(count)  # of a whole number of any size, which no float holds
    power, leading = int(digits), round(10 ** (digits % 1), 1)
    return f"about {leading:g}e{power}" if leading < 10 else f"about 1e{power + 1}"


# HTML


def escape(text: object) -> str:
    """Text that shows unchanged, in an element or between quotes in an attribute."""
    return html.escape(printable(str(text)), quote=True)


def table(rows: Iterable[Sequence[object]], header: Sequence[object] = ()) -> str:
    """Table of texts; the first of every row is its label."""
    head = "".join(f'<th style="{CELL};opacity:0.7">{escape(text)}</th>' for text in header)
    body = "".join(
        f'<tr style="background:transparent"><th style="{CELL};font-weight:600;white-space:nowrap">{escape(first)}</th>'
        + "".join(f'<td style="{CELL};white-space:pre-wrap">{escape(text)}</td>' for text in others)
        + "</tr>"
        for first, *others in rows
    )
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    return (
        f'<table style="border-collapse:collapse;margin:0.3em 0;font-size:inherit">{head}<tbody>{body}</tbody></table>'
    )


def details(summary: object, content: str, *, is_open: bool = False) -> str:
    """Content, which is HTML, behind a line that opens it."""
    shown = " open" if is_open else ""
    return (
        f'<details{shown} style="margin:0.2em 0"><summary style="cursor:pointer">{escape(summary)}</summary>'
        f"{content}</details>"
    )


def texts(items: Iterable[object]) -> str:
    """List of texts."""
    return f'<ul style="margin:0.2em 0">{"".join(f"<li>{escape(item)}</li>" for item in items)}</ul>'


def card(title: object, *content: str) -> str:
    """Title with content, which is HTML, under it."""
    return (
        f'<div style="border:1px solid {LINE_COLOUR};border-radius:0.4em;padding:0.5em 0.8em;margin:0.3em 0;'
        f'max-width:72em;overflow-x:auto"><div style="font-weight:600">{escape(title)}</div>{"".join(content)}</div>'
    )


def card_of_text(text: str, *, is_open: bool = False) -> str:
    """HTML of a text as `str` of plans and results gives it.

    Its first line is the title. A line ``  label       text`` is a row of a table. A line ``  label`` without text
    begins a list of lines ``    - text``, which is behind a line that opens it, unless `is_open`.
    """
    title, *lines = text.splitlines()
    rows = list[list[str]]()
    lists = dict[str, list[str]]()
    name = ""
    for line in lines:
        label, words = line[:LABEL_END].strip(), line[LABEL_END:]
        if line.startswith("    - "):
            lists.setdefault(name, []).append(line[6:])
        elif not words:
            name = label
            lists.setdefault(name, [])
        elif not label and rows:
            rows[-1][1] += f"\n{words}"
        else:
            rows.append([label, words])
    return card(title, table(rows), *(details(name, texts(items), is_open=is_open) for name, items in lists.items()))


class Explained:
    """Base of values whose `str` explains them in lines, which notebooks show as a table (see `card_of_text`).

    Their `repr` is one short line.
    """

    def _summary(self) -> str:
        """Text of `repr`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        text = f"<{type(self).__name__}: {one_line(self._summary())}>"
        return text if len(text) <= MAX_REPR else f"{text[: MAX_REPR - 4]}...>"

    def _repr_html_(self) -> str:
        return card_of_text(str(self))


class Reason(str):
    """Sentence of a plan for people, with a code for programs: words may change, a code stays what it is.

    Attributes
    ----------
    code : str
        A few words in kebab-case, such as "smaller-matrix"; empty, as the sentence, where there is no reason.

    See Also
    --------
    dkrr.planning.Plan : The plan of a fit.

    Examples
    --------
    >>> from dkrr.planning import Reason
    >>> reason = Reason("smaller-matrix", "the matrix of the dual form is smaller")
    >>> print(reason, reason.code, sep="; ")
    the matrix of the dual form is smaller; smaller-matrix
    """

    code: str

    def __new__(cls, code: str = "", text: str = "") -> Self:
        reason = super().__new__(cls, text)
        reason.code = code
        return reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.code, str(self))


NO_REASON = Reason()


def codes_of(reasons: Iterable[str]) -> list[str]:
    """Codes of sentences; empty for one that came back as text only, as from a file of skops."""
    return [getattr(reason, "code", "") for reason in reasons]
