"""Nyström centres, which the calling process draws before the work of a plan: a stage, and its reason."""

from typing import NamedTuple

from dkrr.cost import Stage
from dkrr.text import Reason, format_bytes, format_seconds, plural


class Drawing(NamedTuple):
    """Projected cost of drawing all centres of a kernel."""

    stage: Stage
    """Its peak is that of the calling process."""
    n_centres: int
    is_uniform: bool
    """No centre needs more than its own row."""
    is_done: bool
    """They have been drawn for this fit."""

    def reason(self) -> Reason:
        """Reason of a plan that states this cost."""
        cost = f"about {format_seconds(self.stage.seconds)}, at most {format_bytes(self.stage.peak_bytes)}"
        count = plural(self.n_centres, "centre")
        return Reason("centres-drawn", f"the calling process draws {count} of Nystroem before the fit: {cost}")


def drawing_reasons(drawing: Drawing | None) -> list[Reason]:
    """The reason that states the cost of drawing centres, where a plan draws some."""
    return [] if drawing is None else [drawing.reason()]
