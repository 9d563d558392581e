"""The public names are a known list, `dir` has them alone, and each is described once in the reference.

What a user calls, makes or is given is public; all else is imported inside dkrr from the module that defines it.
"""

import ast
import inspect
import pydoc
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import dkrr
from tests.promises.test_documents import DOCS

MODULES = [dkrr, *(one for one in (getattr(dkrr, name) for name in dkrr.__all__) if inspect.ismodule(one))]
NAMES = [f"{module.__name__}.{name}" for module in MODULES for name in sorted(module.__all__)]
OBJECTS = [name for name in NAMES if not (name == "dkrr.__version__" or inspect.ismodule(pydoc.locate(name)))]


def test_public_names_are_those_of_the_golden_file(golden):
    golden("names.txt", "\n".join(NAMES) + "\n")


def test_dir_and_completion_have_the_public_names_alone():
    for module in MODULES:
        assert dir(module) == sorted(set(module.__all__)), module.__name__
    namespace = {}
    exec("from dkrr import *", namespace)
    assert {name for name in namespace if name != "__builtins__"} == set(dkrr.__all__)


def test_every_public_object_has_a_docstring_and_one_entry_in_the_reference():
    listed, module = Counter(), ""
    for page in (DOCS / "api").glob("*.rst"):
        for line in page.read_text().split("\n.. toctree::")[0].splitlines():
            if match := re.fullmatch(r"\.\. (currentmodule|automodule):: (\S+)", line):
                module = match[2]
                listed.update(name for name in OBJECTS if match[1] == "automodule" and name.startswith(f"{module}."))
            elif match := re.fullmatch(r" {3}~?([\w.]+)", line):
                listed[f"{module}.{match[1]}"] += 1
    assert listed == Counter(OBJECTS)
    types = pairwise(ast.parse(Path(dkrr.typing.__file__).read_text()).body)  # below an alias is what it is
    described = {
        f"dkrr.typing.{n.target.id}"
        for n, below in types
        if isinstance(n, ast.AnnAssign) and isinstance(below, ast.Expr)
    }
    for name in OBJECTS:
        if name in described:
            continue
        public = pydoc.locate(name)
        assert public.__doc__ and not public.__doc__.startswith(f"{public.__name__}("), name  # as dataclasses write it
