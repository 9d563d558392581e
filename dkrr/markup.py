"""HTML of notebooks: see `dkrr.text`."""

from dkrr.text import Explained, card, card_of_text, details, escape, table, texts

__all__ = ["Explained", "card", "card_of_text", "details", "escape", "table", "texts"]
