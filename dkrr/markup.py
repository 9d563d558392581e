"""HTML of plans and results for notebooks: small tables that suit light and dark pages, without scripts or styles.

Every text is escaped here: paths, names of columns and of kernels come from users and from files.
"""

import html
from collections.abc import Iterable, Sequence

from dkrr.plain_text import printable

GREY = "rgba(127,127,127,0.35)"
"""Colour of lines, visible on light and dark pages."""
LABEL_END = 14
"""Column where the text of a line begins, behind two spaces and its label."""
CELL = "padding:0.1em 0.9em 0.1em 0;text-align:left;vertical-align:top;background:transparent;border:0"


def escape(text: object) -> str:
    """Text that shows as it is, in an element or between quotes in an attribute."""
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
        f'<div style="border:1px solid {GREY};border-radius:0.4em;padding:0.5em 0.8em;margin:0.3em 0;'
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
    """Base of values whose `str` explains them in lines, which notebooks show as a table (see `card_of_text`)."""

    def _repr_html_(self) -> str:
        return card_of_text(str(self))
