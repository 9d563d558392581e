"""`help()` and Shift-Tab answer: docstrings of public objects have what numpydoc's validation checks."""

import ast
import inspect
import pydoc
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest
from numpydoc.docscrape import get_doc_object
from numpydoc.validate import ERROR_MSGS, Validator, validate

from tests.promises.test_public_names import OBJECTS

NOT_CHECKED = {
    "ES01": "one sentence suffices where it says all",
    "GL01": "ruff sees where the summary begins (D212); numpydoc before 1.11 wants it a line lower",
    "PR08": "a description may begin with a symbol, as λ or φ; ruff looks at words (D403)",
    "RT04": "as PR08",
    "SS02": "as PR08: the summary of a kernel is its formula",
    "SS05": "a summary is a noun phrase, which may begin with a plural: Rows, Bytes, Values",
}
OF_OBJECTS = {"SA01", "EX01"}
"""Of classes and functions, not of their methods, which the class's examples and See Also cover."""
PLAIN = {"RT01", "PR01"}
"""Not asked of a method that overrides one with a docstring, and says only what differs."""


def documented(value: Any) -> Any:
    """Docstring of an object in its sections, to which numpydoc adds nothing of its own."""
    return get_doc_object(value, config={"show_class_members": False})


class OfDkrr(Validator):
    """The fields of a record that dkrr makes, and the members of an enumeration, are in Attributes, not Parameters."""

    def __init__(self, obj_name: Any):
        super().__init__(documented(obj_name))

    source_file_name = source_file_def_line = None
    """Comments that switch checks off are not looked for: reading every file takes a second."""

    @property
    def _is_made_by_dkrr(self) -> bool:
        return inspect.isclass(self.obj) and bool(self.doc["Attributes"]) and not self.doc["Parameters"]

    @property
    def signature_parameters(self) -> tuple[str, ...]:
        if not inspect.isclass(self.obj):
            return super().signature_parameters
        if issubclass(self.obj, Enum):
            return tuple(self.obj.__members__)
        # What errors take is not what they have; nobody constructs a base class.
        if issubclass(self.obj, str | BaseException) or inspect.isabstract(self.obj):
            return tuple(self.doc_all_parameters)
        return super().signature_parameters

    @property
    def doc_all_parameters(self) -> dict[str, Any]:
        return self._doc_parameters(["Attributes"]) if self._is_made_by_dkrr else super().doc_all_parameters

    @property
    def method_returns_something(self) -> bool:
        # The summary of a method without parameters names its value.
        is_method = "." in self.obj.__qualname__
        return (bool(self.signature_parameters) or not is_method) and super().method_returns_something


def public_objects() -> dict[str, Any]:
    """Classes and functions of dkrr that are public, by full name."""
    found = {name: pydoc.locate(name) for name in OBJECTS}
    is_ours = {name: inspect.isroutine(value) or inspect.isclass(value) for name, value in found.items()}
    return {name: value for name, value in found.items() if is_ours[name] and value.__module__.startswith("dkrr")}


def methods(cls: type) -> Iterator[tuple[str, Any, bool]]:
    """Public methods and properties of a class that have a docstring, and whether they override one that has one."""
    for name, value in vars(cls).items():
        method = getattr(value, "__func__", value)
        if name[0] != "_" and (inspect.isfunction(method) or isinstance(value, property)) and method.__doc__:
            yield name, method, any(getattr(getattr(base, name, None), "__doc__", None) for base in cls.__mro__[1:])


def faults(value: Any, left_out: set[str]) -> list[str]:
    found = validate(value, validator_cls=OfDkrr)["errors"]
    return [*(f"{code} {text}" for code, text in found if code not in left_out), *wrong_defaults(value)]


def wrong_defaults(value: Any) -> Iterator[str]:
    """Parameters whose default is not the one that their type says: "optional" is None."""
    parameters = documented(value)["Parameters"]
    signature = inspect.signature(value).parameters if parameters else {}
    for name, of_type, _ in parameters:
        if name in signature and stated_default(of_type) != plain(signature[name].default):
            yield f"the default of {name} is {signature[name].default!r}, and its type is {of_type!r}"


def stated_default(of_type: str) -> Any:
    found = re.search(r"default=(.+)$", of_type)
    if found is None:
        return None if of_type.endswith("optional") else inspect.Parameter.empty
    try:
        return ast.literal_eval(found[1])
    except ValueError:
        return found[1]


def plain(default: Any) -> Any:
    """A default as documents write it: types by name."""
    is_type = isinstance(default, type) and default is not inspect.Parameter.empty
    return default.__name__ if is_type else default


@pytest.mark.parametrize("kind", ["function", "class", "error"])
def test_docstrings_are_valid(kind):
    """Summary, all parameters in the signature's order with type, default and meaning, returned values, an example."""
    assert set(ERROR_MSGS) >= set(NOT_CHECKED)
    wrong, seen = {}, set[Any]()
    for name, value in public_objects().items():
        is_error = inspect.isclass(value) and issubclass(value, BaseException)
        of_kind = "error" if is_error else "class" if inspect.isclass(value) else "function"
        if of_kind != kind:
            continue
        wrong[name] = faults(value, {*NOT_CHECKED, *(OF_OBJECTS if is_error else ())})
        classes = [
            cls for cls in getattr(value, "__mro__", ()) if cls.__module__.startswith("dkrr") and cls not in seen
        ]
        seen.update(classes)
        for method, function, overrides in (one for cls in classes for one in methods(cls)):
            left_out = {*NOT_CHECKED, *OF_OBJECTS, *(PLAIN if overrides else ())}
            wrong[f"{name}.{method}"] = faults(function, left_out)
    wrong = {name: texts for name, texts in wrong.items() if texts}
    assert not wrong, "\n".join(f"{name}: {'; '.join(texts)}" for name, texts in wrong.items())


def test_see_also_names_what_exists():
    for name, value in public_objects().items():
        for other in Validator(documented(value)).see_also:
            assert pydoc.locate(other) is not None, f"{name} refers to {other}"


def test_choices_of_docstrings_are_those_that_type_checkers_know():
    """In ``form : {"auto", "primal", "dual"}`` as in ``form: Literal["auto", "primal", "dual"]``."""
    compared = set()
    for public in public_objects().values():
        taken = public.__doc__.partition("\n    Parameters\n")[2].partition("\n    Attributes\n")[0]
        for name, choices in re.findall(r"^ {4}(\w+) : \{(.+?)\}", taken, re.M):
            known = re.search(r"Literal\[(.+?)\]", str(inspect.signature(public).parameters[name].annotation))
            assert known, (public, name)
            assert set(re.findall(r"\w+", choices)) == set(re.findall(r"\w+", known[1])), (public, name)
            compared.add(name)
    assert compared >= {"form", "solver", "loss"}
