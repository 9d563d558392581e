"""What the command line asks of a job, and what a command does with its models."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dkrr.errors import DkrrError

INTERRUPTED = 130
"""Exit status after Ctrl-C; SIGTERM and SIGHUP end the process themselves, once it has reported."""


@dataclass(frozen=True)
class Batch:
    """How the models of a job are carried out."""

    only: tuple[str, ...]
    """Patterns of names; empty: all models."""
    part: tuple[int, int] | None
    """Number of the part, from 1, and how many there are; None: all models."""
    resume: bool
    """Whether complete models are skipped."""
    overwrite: bool
    """Whether other models at their places are replaced."""
    dry_run: bool
    """Whether the models are only checked and listed."""
    fail_fast: bool
    """Whether no model is started after one has failed."""
    keep_stores: bool
    """Whether the stores of runs whose models are saved are kept."""
    results: str | None
    """File for the records."""
    as_json: bool
    """Whether records go to stdout."""
    quiet: bool
    """Whether only warnings and errors are logged."""


class Task(Protocol):
    """What a command does with each model of a job; arguments are those of the command's function, by name."""

    def group(self, arguments: Mapping[str, Any]) -> Hashable:
        """What a model has in common with those that are solved together with it; None: it is solved alone."""

    def begin(self, groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Take the models of a job that are to be fitted, in groups."""

    def prepare(self, arguments: Mapping[str, Any], *, overwrite: bool) -> Any:
        """Check the arguments, before any work; the plan, or None if the command makes none in advance."""

    def carry_out(
        self, arguments: Mapping[str, Any], *, overwrite: bool, quiet: bool, origin: dict[str, Any]
    ) -> dict[str, Any]:
        """Fit and save a model; values of JSON about it.

        Raises
        ------
        UnusableModelError
            If the fit ended without a model that can be saved.
        """

    def clean(self, arguments: Mapping[str, Any]) -> None:
        """Delete the store of a run whose model is saved."""


class UnusableModelError(DkrrError):
    """A fit ended without a model that can be saved.

    Attributes
    ----------
    facts : dict
        What the command says about it.
    """

    def __init__(self, message: str, facts: dict[str, Any]) -> None:
        super().__init__(message)
        self.facts = facts

    def __reduce__(self) -> tuple[type, tuple[str, dict[str, Any]]]:
        # Exceptions travel between processes.
        return type(self), (str(self), self.facts)
