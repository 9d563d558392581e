"""English of pages, messages, docstrings and comments: words that readers stumble over, and what to write instead."""

import importlib
import inspect
import re
from bisect import bisect_left
from pathlib import Path

import pytest

from tests.promises.test_documents import PAGES, ROOT

LIVING = "knows|sees|wants|believes|thinks|hopes|likes|forgets|forgives|teaches|promises|understands|remembers"
CODE = "dkrr|planner|plan|kernel|model|fit|store|solver|transformer|estimator|scheduler|command|function|matrix|run"
COMPARED = "more|less|longer|better|worse|faster|slower|larger|smaller|greater|higher|lower|wider|nearer|further|different"
END = r"(?=[.,;:)]|\s*$| (?:and|or|but|in|for|on|with|that|which|whose|where|from|to|as|at|is|are|has|have|if|than)\b)"
INSTEAD = {
    r"some (?:hundred|thousand|million)s?": "a few hundred ...",
    rf"of (?:its|their|your|our|his) own{END}": "its own ..., or: separate",
    r"by (?:itself|themselves)": "automatically, or: alone, separately",
    r"(?:what|that|which|those|they) (?:is|are) there(?! (?:a|an|any|no)\b)": "existing ...",
    r"(?<!soon )(?<!long )(?<!far )as it is(?=[.,;:)]| (?:where|if|when)\b)": "unchanged",
    r"anew": "again",
    r"for ever": "forever",
    r"presum(?:e|es|ed|ing|ably)": "assume",
    r"let(?:s|ting)? go of": "releases",
    r"(?:go|goes|going|went) on (?:from|with)": "resumes from, or: continues with",
    r"mend(?:s|ed|ing)?": "fix",
    r"forgiv(?:e|es|ing|en)": "tolerates",
    rf"(?<!there )(?:is|are) no (?!(?:{COMPARED})\b)": "is not a ..., or: there is no ...",
    rf"(?:{CODE}) (?:{LIVING})": "has, receives, needs, assumes, returns",
    r"(?<!who )(?<!whoever )(?<!user )(?<!reader )wants": "needs, or: asks for",
    r"(?:has|have) vanished": "no longer exists",
    r"enrol\w*": "registers",
}
"""Pattern of each refused phrase, and what to write instead. None may refuse a sentence that is right."""

GAP = r"(?:[\s#>]|\"\s*\n\s*[fr]?\")+"
"""Between two words of a phrase: also lines of a comment, and strings that follow each other."""
REFUSED = re.compile(
    "|".join(rf"(?P<p{k}>\b(?:{p.replace(' ', GAP) if '(?<!' not in p else p}))" for k, p in enumerate(INSTEAD)), re.I
)
