"""English of pages, messages, docstrings and comments: words that readers stumble over, and what to write instead."""

import importlib
import inspect
import re
from bisect import bisect_right
from pathlib import Path

import pytest

from tests.promises.test_documents import PAGES, ROOT

COMPARED = "more|less|longer|better|worse|faster|slower|larger|smaller|greater|higher|lower|wider|nearer|different"
LIVING = "knows|sees|wants|believes|thinks|hopes|likes|forgets|forgives|teaches|promises|understands|remembers"
NEXT = "and|or|but|nor|in|on|for|with|that|which|whose|where|from|to|as|at|is|are|has|have|if|than|by|beside|before"
THINGS = "dkrr|planner|plan|kernel|model|fit|store|solver|transformer|estimator|scheduler|command|function|matrix|run"
INSTEAD = {
    r"some (?:hundred|thousand|million)s?": "a few hundred, a few thousand",
    rf"of (?:its|their|your|our) own(?=[^\w ]|$| (?:{NEXT})\b)": "its own ..., separate",
    r"by (?:itself|themselves)": "automatically, alone, separately",
    r"(?:what|that|which|those|they) (?:is|are) there(?! (?:a|an|any|no)\b)": "existing ...",
    r"(?<!soon )(?<!long )(?<!far )as it is(?=[.,;:)]|$| (?:where|if|when)\b)": "unchanged",
    r"anew": "again",
    r"for ever": "forever",
    r"presum(?:e|es|ed|ing|ably)": "assume",
    r"let(?:s|ting)? go of": "releases",
    r"begins? anew": "restarts",
    r"(?:go|goes|going|went) on (?:from|with)": "resumes from, continues with",
    r"mend(?:s|ed|ing)?": "fix",
    r"forgiv(?:e|es|ing|en)": "tolerates",
    rf"(?<!there )(?:is|are) no(?! (?:{COMPARED})\b)": "is not a ..., there is no ...",
    rf"(?:{THINGS}) (?:{LIVING})": "has, receives, needs, assumes, returns",
    r"(?<!who )(?<!whoever )(?<!user )(?<!reader )wants": "needs, asks for",
    r"(?:has|have) vanished": "no longer exists",
    r"enrol(?:s|led)?": "registers",
    r"behind (?:a|the|its) (?:transformer|end)": "after",
}
"""Pattern of a refused phrase, and what to write instead. A pattern that meets a correct sentence is too wide."""
REFUSED = re.compile("|".join(rf"\b({pattern})(?!\w)" for pattern in INSTEAD))
FOLDERS = {"*.md": (".", "benchmarks", "tests"), "*.rst": ("docs/api", "examples", "examples/*")}
WRITTEN = {
    page for ending, folders in FOLDERS.items() for folder in folders for page in ROOT.glob(f"{folder}/{ending}")
}
WRITTEN = sorted(WRITTEN | {page for page in PAGES if "results" not in page.parts})
"""Pages that people wrote: the others are made by commands."""
CODE = [path for folder in ("dkrr", "benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
PUBLIC = (ROOT / "tests" / "golden" / "names.txt").read_text().split()
POINTING = re.compile(r"(What|Those|The same|Of|Whose)\b")


def words_of(text: str) -> str:
    """Words of a text with one blank between them, also where a comment or a string continues on the next line."""
    return " ".join(text.split()).replace('" "', "").replace('" f"', "").replace(" # ", " ").lower()


def refused(text: str) -> list[str]:
    """Refused phrases of a text, each with its line and what to write instead."""
    words, lines, instead = words_of(text), text.splitlines(keepends=True), [*INSTEAD.values()]
    found = []
    for match in REFUSED.finditer(words):
        before = range(len(lines))
        line = bisect_right(before, match.start(), key=lambda k: len(words_of("".join(lines[:k])).rstrip('"')))
        found.append(f"{line}: '{match[0]}'; write: {instead[match.lastindex - 1]}")
    return found


@pytest.mark.parametrize("paths", [WRITTEN, CODE], ids=["pages", "code"])
def test_pages_and_code_avoid_the_words_of_the_list(paths: list[Path]):
    found = [f"{path.relative_to(ROOT)}:{each}" for path in paths for each in refused(path.read_text())]
    assert not found, "\n" + "\n".join(found)


def test_docstrings_of_public_objects_name_their_subject():
    found = []
    for name in PUBLIC:
        home, _, last = name.rpartition(".")
        one = getattr(importlib.import_module(home), last)
        members = inspect.getmembers(one) if inspect.isclass(one) else []
        for label, value in [(name, one), *((f"{name}.{m}", value) for m, value in members if m[0] != "_")]:
            documented = inspect.isroutine(value) or inspect.isclass(value) or isinstance(value, property)
            if documented and POINTING.match(value.__doc__ or ""):
                found.append(f"{label}: {value.__doc__.splitlines()[0]}")
    assert not found, "\n" + "\n".join(found)


def test_a_refused_phrase_is_named_with_its_line_and_the_better_one():
    code = '# A fit of its\n# own, which follows.\nx = (\n    "the matrix, as it is; "\n    f"by "\n    f"itself"\n)\n'
    assert refused(code) == [
        "1: 'of its own'; write: its own ..., separate",
        "4: 'as it is'; write: unchanged",
        "5: 'by itself'; write: automatically, alone, separately",
    ]
    assert len(refused("The numbers are no classes, for dkrr knows what is there and wants none.")) == 4
    assert not refused(
        "The tiles of its own row are read as long as it is open, or as it is made of columns. There are no others, "
        "and these are no longer than one row. The user wants an amendment."
    )
