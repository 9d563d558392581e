"""Tables that commands write into pages."""

import click


def replaced(page: str, block: str, begin: str, end: str) -> str:
    """Return a page with another block between two markers.

    Raises
    ------
    click.ClickException
        If the page has no such markers.
    """
    if begin not in page or end not in page:
        raise click.ClickException(f"the page has no lines {begin} and {end} for the table to stand between")
    before, rest = page.split(begin, 1)
    return f"{before}{begin}\n{block}\n{end}{rest.split(end, 1)[1]}"
