"""Sentences of plans for people, with codes for programs."""

from collections.abc import Iterable
from typing import Self


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
